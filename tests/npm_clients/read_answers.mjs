// Asks each API with clients from npm, whole and streamed: node read_answers.mjs <base URL> <key> <model>
// Writes {"<client> <API>": [text of the whole answer, text of the streamed one]}.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const prompt = "Count from one to ten.";
const messages = [{ role: "user", content: prompt }];
const client = new OpenAI({ baseURL, apiKey });
const provider = createOpenAI({ baseURL, apiKey });
const anthropic = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey });
const anthropicProvider = createAnthropic({ baseURL, apiKey });
const greedy = { model, temperature: 0 };

async function joined(stream, textOf) {
  let text = "";
  for await (const event of stream) text += textOf(event) ?? "";
  return text;
}

async function openaiChat() {
  const asked = { ...greedy, messages, max_tokens: 12 };
  const whole = await client.chat.completions.create(asked);
  const stream = await client.chat.completions.create({ ...asked, stream: true });
  const delta = (event) => event.choices[0]?.delta.content;
  return [whole.choices[0].message.content, await joined(stream, delta)];
}

async function openaiCompletions() {
  const asked = { ...greedy, prompt, max_tokens: 12 };
  const whole = await client.completions.create(asked);
  const stream = await client.completions.create({ ...asked, stream: true });
  return [whole.choices[0].text, await joined(stream, (event) => event.choices[0]?.text)];
}

async function openaiResponses() {
  const asked = { ...greedy, input: prompt, max_output_tokens: 12 };
  const whole = await client.responses.create(asked);
  const stream = await client.responses.create({ ...asked, stream: true });
  const delta = (event) => (event.type === "response.output_text.delta" ? event.delta : "");
  return [whole.output_text, await joined(stream, delta)];
}

async function anthropicMessages() {
  const asked = { model, messages, max_tokens: 12, temperature: 0 };
  const whole = await anthropic.messages.create(asked);
  const streamed = await anthropic.messages.stream(asked).finalText();
  return [whole.content[0].text, streamed];
}

async function vercel(of) {
  const asked = { model: of, messages, temperature: 0, maxOutputTokens: 12 };
  const whole = await generateText(asked);
  return [whole.text, await joined(streamText(asked).textStream, (text) => text)];
}

const read = {
  "openai chat": await openaiChat(),
  "openai completions": await openaiCompletions(),
  "openai responses": await openaiResponses(),
  "anthropic messages": await anthropicMessages(),
  "vercel chat": await vercel(provider.chat(model)),
  "vercel completions": await vercel(provider.completion(model)),
  "vercel responses": await vercel(provider.responses(model)),
  "vercel messages": await vercel(anthropicProvider(model)),
};
console.log(JSON.stringify(read));
