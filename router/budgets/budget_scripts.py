"""Redis scripts for budgets, each of them atomic. Times are those of Redis, in seconds.

    key                        value                                                lifetime
    budgets                    hash: gen, born, expected; m:<gateway> -> heard,     for ever
                               share, until, process, vouches
    ...:budgets:scopes         set of the scopes that have a key                    for ever
    ...:budgets:<scope>        hash: newest bucket b, sums r and t of 62 buckets,   until it is idle
                               r<i> and t<i>: requests and tokens of bucket i % 62  and swept
    ...:budgets:<scope>:leases sorted set: requests under way, by when they lapse   the last lease

Keys in use have no expiry, because a Redis without free memory evicts keys that have one. All are
in one hash slot, so that one script sees the gateways and a request's scopes together.

`gen` is the server's run_id. Another server has other data, or older: counting starts again. The
same applies after its clock was set back.
"""

from __future__ import annotations

# Numbers of buckets: in the window (60 s overlap at most 61, and a reply may take one to arrive);
# until a silent gateway's share is withheld; for how long at most; and in a lease.
WINDOW, SILENT, AWAY, LEASE = 62, 5, 900, 30

# ARGV of all scripts: deadline, gen, gateway, its process, seconds per bucket
_COMMON = (
    f"""
local WINDOW, SILENT, AWAY, LEASE = {WINDOW}, {SILENT}, {AWAY}, {LEASE}
local K = KEYS[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
if now > tonumber(ARGV[1]) then return {{'late'}} end
local gen, me, process, length = ARGV[2], 'm:' .. ARGV[3], ARGV[4], tonumber(ARGV[5])
local bucket = math.floor(now / length)
"""
    + """
local function members()
  local all, list, meta = redis.call('HGETALL', K), {}, {}
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'm:' then
      local heard, share, til, whose, vouches =
        string.match(all[i + 1], '(%S+) (%S+) (%S+) (%S+) (%S+)')
      list[all[i]] = {heard = tonumber(heard), share = tonumber(share), til = tonumber(til),
                      process = whose, vouches = vouches == '1'}
    else
      meta[all[i]] = all[i + 1]
    end
  end
  return list, meta
end

local function member(name, heard, share, til, whose, vouches)
  local text = string.format('%.6f %.17g %.6f %s %s', heard, share, til, whose, vouches)
  redis.call('HSET', K, name, text)
end

-- the scope's newest bucket and its sums, after what has left the window is gone
local function window(key)
  local found = redis.call('HMGET', key, 'b', 'r', 't')
  local newest, r, t = tonumber(found[1]), tonumber(found[2]) or 0, tonumber(found[3]) or 0
  if not newest then return bucket, 0, 0 end
  if bucket <= newest then return newest, r, t end
  if bucket - newest >= WINDOW then
    redis.call('DEL', key)
    return bucket, 0, 0
  end
  local names = {}
  for b = newest + 1, bucket do
    names[#names + 1] = 'r' .. b % WINDOW
    names[#names + 1] = 't' .. b % WINDOW
  end
  local gone = redis.call('HMGET', key, unpack(names))
  for i = 1, #gone, 2 do
    r, t = r - (tonumber(gone[i]) or 0), t - (tonumber(gone[i + 1]) or 0)
  end
  redis.call('HDEL', key, unpack(names))
  redis.call('HSET', key, 'b', bucket, 'r', r, 't', t)
  return bucket, r, t
end

local function add(key, newest, b, r, t)
  redis.call('HSET', key, 'b', newest)
  redis.call('HINCRBY', key, 'r', r)
  redis.call('HINCRBY', key, 't', t)
  redis.call('HINCRBY', key, 'r' .. b % WINDOW, r)
  redis.call('HINCRBY', key, 't' .. b % WINDOW, t)
end
"""
)

# ... expected, vouches, its share, and as JSON what it spent and has in progress
# -> 'ok', now, its new share, the number of gateways, whether its grants were known
# or 'unknown': it must report everything
BEAT = (
    _COMMON
    + """
local expected, vouches, holds = tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local told = cjson.decode(ARGV[9])
local same = redis.call('HGET', K, 'gen') == gen
-- a clock that was set back: nothing would leave a window until it is where it was
for _, other in pairs((members())) do same = same and other.heard <= now + length end
if not told.all and not (same and string.find(redis.call('HGET', K, me) or '', process, 1, true))
then return {'unknown'} end
if not same then
  for _, scope in ipairs(redis.call('SMEMBERS', K .. ':scopes')) do
    redis.call('DEL', K .. ':' .. scope, K .. ':' .. scope .. ':leases')
  end
  redis.call('DEL', K, K .. ':scopes')
  redis.call('HSET', K, 'gen', gen, 'born', string.format('%.6f', now))
end
local list, meta = members()
local before, known = list[me], false
if before then
  known = before.process == process
  -- its predecessor may have spent its share unseen until a moment ago
  if not known and now - before.heard > (SILENT + WINDOW) * length then
    local til = now + WINDOW * length
    member(me .. '~', before.heard, before.share, til, before.process, '0')
  end
end
expected = math.max(expected, tonumber(meta.expected) or 0)
if now - tonumber(meta.born or now) < WINDOW * length then
  redis.call('HSET', K, 'expected', expected)
end
local sum, count = 0, 1
for name, other in pairs(list) do
  if name ~= me then
    if other.til < now then
      redis.call('HDEL', K, name)
    else
      sum, count = sum + other.share, count + 1
    end
  end
end
local share = math.max(0, math.min(1 / math.max(tonumber(ARGV[6]), count), 1 - sum))
-- until it says that it has the smaller one, it may go by the one before
member(me, now, math.max(share, holds), now + AWAY * length, process, vouches)
for _, spent in ipairs(told.spent) do
  local scope, age, r, t, unseen_r, unseen_t = unpack(spent)
  if known then r, t = unseen_r, unseen_t else r, t = r + unseen_r, t + unseen_t end
  local b = math.floor((now - age) / length)
  if r + t > 0 and b > bucket - WINDOW then
    local newest = window(K .. ':' .. scope)
    redis.call('SADD', K .. ':scopes', scope)
    if b > newest - WINDOW then add(K .. ':' .. scope, newest, b, r, t) end
  end
end
for _, lease in ipairs(told.leases) do
  redis.call('ZADD', K .. ':' .. lease[1] .. ':leases', now + LEASE * length, lease[2])
  redis.call('SADD', K .. ':scopes', lease[1])
end
local idle = told.idle
-- and one by chance: whoever used it may be gone
idle[#idle + 1] = redis.call('SRANDMEMBER', K .. ':scopes') or nil
for _, scope in ipairs(idle) do
  local key = K .. ':' .. scope
  redis.call('ZREMRANGEBYSCORE', key .. ':leases', '-inf', now)
  local _, r, t = window(key)
  if r == 0 and t == 0 then redis.call('DEL', key) end
  if redis.call('EXISTS', key, key .. ':leases') == 0 then
    redis.call('SREM', K .. ':scopes', scope)
  end
end
return {'ok', string.format('%.6f', now), string.format('%.17g', share), count,
        known and 1 or 0}
"""
)

# ... requests, tokens, lease, then for each scope: its name, its three limits (-1: none)
# -> 'ok', bucket, remaining requests and tokens by scope
# or 'no', the exceeded limit, its scope, seconds until there is room, remaining by scope
# or 'young', seconds until it counts; or 'unknown': send a beat first
RESERVE = (
    _COMMON
    + """
local list, meta = members()
if meta.gen ~= gen or not list[me] or list[me].process ~= process then return {'unknown'} end
local requests, tokens, lease = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local there, vouching, withheld = 0, 0, {}
for name, other in pairs(list) do
  there = there + 1
  if other.vouches then vouching = vouching + 1 end
  if name ~= me and now - other.heard > SILENT * length and now <= other.til then
    withheld[#withheld + 1] = other.share
  end
end
local age, expected = now - tonumber(meta.born), tonumber(meta.expected) or 1
if age < WINDOW * length and vouching < expected then
  return {'young', tostring(WINDOW * length - age)}
end
if age < AWAY * length then
  for _ = there + 1, expected do withheld[#withheld + 1] = 1 / expected end
end
local scopes, remaining, exceeded, whose, wait = {}, {}, nil, nil, -1
for i = 9, #ARGV, 4 do
  local scope = {name = ARGV[i], key = K .. ':' .. ARGV[i], running = tonumber(ARGV[i + 3])}
  local limits = {r = tonumber(ARGV[i + 1]), t = tonumber(ARGV[i + 2])}
  local sums, newest = {}, nil
  newest, sums.r, sums.t = window(scope.key)
  scope.newest = newest
  local asked = {r = requests, t = tokens}
  for _, kind in ipairs({'r', 't'}) do
    local left = -1
    if limits[kind] >= 0 then
      local limit = limits[kind]
      for _, share in ipairs(withheld) do limit = limit - math.floor(limits[kind] * share) end
      left = limit - sums[kind]
      if asked[kind] > left then
        -- the oldest buckets leave first
        local short, names, freed = asked[kind] - left, {}, WINDOW * length
        for b = newest - WINDOW + 1, newest do names[#names + 1] = kind .. b % WINDOW end
        for place, value in ipairs(redis.call('HMGET', scope.key, unpack(names))) do
          short = short - (tonumber(value) or 0)
          if short <= 0 then
            freed = (newest - WINDOW + place + WINDOW) * length - now
            break
          end
        end
        if freed > wait then exceeded, whose, wait = kind, scope.name, freed end
        left = math.max(0, left)
      else
        left = left - asked[kind]
      end
    end
    remaining[#remaining + 1] = left
  end
  if scope.running >= 0 then
    local limit = scope.running
    for _, share in ipairs(withheld) do limit = limit - math.floor(scope.running * share) end
    redis.call('ZREMRANGEBYSCORE', scope.key .. ':leases', '-inf', now)
    if redis.call('ZCARD', scope.key .. ':leases') >= limit and wait < length then
      exceeded, whose, wait = 'c', scope.name, length
    end
  end
  scopes[#scopes + 1] = scope
end
if exceeded then return {'no', exceeded, whose, tostring(wait), unpack(remaining)} end
for _, scope in ipairs(scopes) do
  redis.call('SADD', K .. ':scopes', scope.name)
  add(scope.key, scope.newest, scope.newest, requests, tokens)
  if scope.running >= 0 then
    redis.call('ZADD', scope.key .. ':leases', now + LEASE * length, lease)
  end
end
return {'ok', scopes[1].newest, unpack(remaining)}
"""
)

# ... then for each scope: its name, the reservation's bucket, the unused amounts, its lease. For
# use beyond the reservation, the bucket is 'now' and the amounts are negative.
SETTLE = (
    _COMMON
    + """
if redis.call('HGET', K, 'gen') ~= gen then return {'unknown'} end
for i = 6, #ARGV, 5 do
  local key, b = K .. ':' .. ARGV[i], tonumber(ARGV[i + 1])
  local newest = window(key)
  if not b then
    redis.call('SADD', K .. ':scopes', ARGV[i])
    add(key, newest, newest, 0 - tonumber(ARGV[i + 2]), 0 - tonumber(ARGV[i + 3]))
  elseif b > newest - WINDOW then
    for place, kind in ipairs({'r', 't'}) do
      local name = kind .. b % WINDOW
      local back = math.min(tonumber(ARGV[i + 1 + place]),
                            tonumber(redis.call('HGET', key, name)) or 0)
      if back > 0 then
        redis.call('HINCRBY', key, name, -back)
        redis.call('HINCRBY', key, kind, -back)
      end
    end
  end
  redis.call('ZREM', key .. ':leases', ARGV[i + 4])
end
return {'ok'}
"""
)

# A gateway without unreported grants leaves for good. If Redis lost its data within the window, no
# process would report that gateway's grants. Until then it counts as a gateway without a share.
LEAVE = _COMMON + "member(me, now, 0, now + WINDOW * length, process, '0')\nreturn {'ok'}"
