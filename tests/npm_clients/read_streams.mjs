// Reads a stream of each API with clients from npm: node read_streams.mjs <base URL> <key> <model>
// Writes {"<client> <API>": {"code", "status", "message"}}, the error that the client reports; null
// where it reports none.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import Anthropic from "@anthropic-ai/sdk";
import { streamText } from "ai";
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const messages = [{ role: "user", content: "hi" }];
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const provider = createOpenAI({ baseURL, apiKey });
const anthropic = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey, maxRetries: 0 });
const anthropicProvider = createAnthropic({ baseURL, apiKey });
const asked = { model, messages, max_tokens: 5, stream: true };

async function read(begun) {
  for await (const _ of await begun);
}

async function readByVercel(model) {
  let failure;
  const onError = ({ error }) => (failure = error);
  await read(streamText({ model, messages, maxRetries: 0, onError }).fullStream);
  if (failure) throw failure;
}

const reads = {
  "openai chat": () => read(client.chat.completions.create({ model, messages, stream: true })),
  "openai completions": () => read(client.completions.create({ model, prompt: "hi", stream: true })),
  "openai responses": () => read(client.responses.create({ model, input: "hi", stream: true })),
  "vercel chat": () => readByVercel(provider.chat(model)),
  "vercel completions": () => readByVercel(provider.completion(model)),
  "vercel responses": () => readByVercel(provider.responses(model)),
  "anthropic messages": () => read(anthropic.messages.create(asked)),
  "vercel messages": () => readByVercel(anthropicProvider(model)),
};

// A schema of the client's may leave out what it does not know.
function parsed(text) {
  return text && JSON.parse(text);
}

const reported = {};
for (const [name, once] of Object.entries(reads)) {
  try {
    await once();
    reported[name] = null;
  } catch (error) {
    const { code, status, statusCode, message, data } = error;
    // A provider's `data` has only the fields that it knows.
    const body = error.error ?? parsed(error.responseBody) ?? data;
    const found = code ?? (body?.error ?? body)?.code;
    reported[name] = { code: found, status: status ?? statusCode, message };
  }
}
console.log(JSON.stringify(reported));
