// An agent's turns with the Vercel AI SDK: node agent_turns.mjs <base URL> <key> <model>
// The first answer is replaced by a tool's call and its result. Then it reads a stream and an
// answer, by chat completions, by responses and by messages. Writes {"<API>": [each message]}.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, streamText, tool } from "ai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const provider = createOpenAI({ baseURL, apiKey });
const anthropic = createAnthropic({ baseURL, apiKey });
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = { weather: tool({ description: "The weather in a city.", inputSchema: jsonSchema(city) }) };
const call = { toolCallId: "call_1", toolName: "weather" };
const called = [
  { role: "assistant", content: [{ type: "tool-call", ...call, input: { city: "Rome" } }] },
  { role: "tool", content: [{ type: "tool-result", ...call, output: { type: "text", value: "clear" } }] },
];

async function turns(of) {
  const asked = {
    model: of,
    tools,
    maxRetries: 0,
    maxOutputTokens: 8,
    providerOptions: { openai: { store: false } },
  };
  const messages = [{ role: "user", content: "What is the weather in Rome?" }];
  await generateText({ ...asked, messages });
  messages.push(...called);
  const told = streamText({ ...asked, messages, onError: ({ error }) => { throw error; } });
  await told.consumeStream();
  messages.push({ role: "assistant", content: [{ type: "text", text: await told.text }] });
  messages.push({ role: "user", content: [{ type: "text", text: "Thanks." }] });
  const last = await generateText({ ...asked, messages });
  messages.push({ role: "assistant", content: [{ type: "text", text: last.text }] });
  return messages.map(({ role, content }) =>
    typeof content === "string" ? role : `${role}: ${content.map(({ type }) => type).join(", ")}`,
  );
}

console.log(
  JSON.stringify({
    chat: await turns(provider.chat(model)),
    responses: await turns(provider.responses(model)),
    messages: await turns(anthropic(model)),
  }),
);
