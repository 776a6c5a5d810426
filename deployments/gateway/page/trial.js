// A box that sends one chat request with the reader's key, shows the answer as it arrives, and then
// the explanation of that request.

import { ask, complaint, post } from "./api.js";
import { count, el, seconds, tokens } from "./dom.js";
import { explanation } from "./explanation.js";
import { outcomeOf } from "./facts.js";

// When the explanation is asked for, after the end: gateways write it in the background.
const ASKED_AFTER_MS = [400, 800, 1600, 3200];

export class Trial {
  constructor(section) {
    this.part = (id) => section.querySelector(`#trial-${id}`);
    this.aborter = null;
    section.addEventListener("toggle", () => {
      if (section.open) this.listModels();
    });
    this.part("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.part("stop").addEventListener("click", () => this.aborter?.abort());
  }

  // What one reader asked is not for the next.
  forget() {
    this.aborter?.abort();
    this.aborter = null;
    this.part("prompt").value = "";
    this.part("model").replaceChildren();
    this.clear();
  }

  clear() {
    this.part("state").textContent = "";
    this.part("answer").textContent = "";
    this.part("answer").hidden = true;
    this.part("explanation").replaceChildren();
  }

  async listModels() {
    const answer = await ask("../v1/models");
    if (answer.status !== 200) return this.say(`The models cannot be listed: ${complaint(answer)}`);
    const select = this.part("model");
    const chosen = select.value;
    select.replaceChildren(...answer.body.data.map(({ id }) => el("option", { value: id, selected: id === chosen }, id)));
  }

  // Screen readers read it aloud whenever it is set.
  say(text) {
    if (this.part("state").textContent !== text) this.part("state").textContent = text;
  }

  async send() {
    this.aborter?.abort();
    const aborter = this.aborter = new AbortController();
    const requestId = `page-${[...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
    this.clear();
    this.say("Waiting for the first token.");
    this.part("stop").hidden = false;
    const said = await this.answered(requestId, aborter);
    if (this.aborter !== aborter) return; // another request, or another reader, has followed
    this.part("stop").hidden = true;
    this.say(said);
    await this.explain(requestId, aborter);
  }

  // Shows the answer, and returns how it ended, in words.
  async answered(requestId, aborter) {
    const began = performance.now();
    const since = () => (performance.now() - began) / 1000;
    let first = null;
    let usage = null;
    try {
      const answer = await post("../v1/chat/completions", {
        model: this.part("model").value,
        messages: [{ role: "user", content: this.part("prompt").value }],
        max_tokens: this.part("tokens").valueAsNumber,
        stream: true,
        stream_options: { include_usage: true },
      }, requestId, aborter.signal);
      if (!answer.ok) return `${answer.status}: ${complaint({ status: answer.status, body: await answer.json() })}`;
      for await (const event of eventsOf(answer.body)) {
        if (event.error) return `The answer ended with an error: ${event.error.message}`;
        const delta = event.choices?.[0]?.delta;
        const text = `${delta?.reasoning_content ?? delta?.reasoning ?? ""}${delta?.content ?? ""}`;
        usage = event.usage ?? usage;
        if (!text || this.aborter !== aborter) continue;
        first ??= since();
        this.part("answer").hidden = false;
        this.part("answer").append(text);
        this.say("Receiving the answer.");
      }
    } catch (error) {
      return aborter.signal.aborted ? "Stopped." : `The answer was interrupted: ${error.message}`;
    }
    const size = usage ? `, ${tokens(usage.completion_tokens)} for a prompt of ${tokens(usage.prompt_tokens)}` : "";
    return `Complete after ${seconds(since())}, the first token after ${seconds(first)}${size}. Both were measured in this browser.`;
  }

  async explain(requestId, aborter) {
    let missing = "";
    for (const [i, delay] of ASKED_AFTER_MS.entries()) {
      await new Promise((resolve) => setTimeout(resolve, delay));
      if (this.aborter !== aborter) return;
      const found = await ask(`requests/${requestId}`);
      if (this.aborter !== aborter) return;
      if (found.status === 200 && (outcomeOf(found.body) !== null || i === ASKED_AFTER_MS.length - 1)) {
        this.part("explanation").replaceChildren(
          el("h3", {}, `Where ${requestId} went, and why`),
          el("div", { class: "explanation" }, explanation(found.body)));
        return;
      }
      missing = complaint(found);
    }
    this.part("explanation").replaceChildren(el("p", { class: "hint" },
      `No explanation of ${requestId} after ${count(ASKED_AFTER_MS.length)} attempts: ${missing}`));
  }
}

// The JSON events of a stream.
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
