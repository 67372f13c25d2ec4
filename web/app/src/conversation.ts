import type { Answer, ChatOptions, Message, Oxidize } from "oxidize";
import { element } from "./element";
import { renderMarkdown } from "./markdown";
import { readSettings } from "./settings";

/** The conversation on the page. */
export class Conversation {
  #messages: Message[] = [];
  #answer: Answer | undefined;
  #list = element("messages");
  #scroller = document.querySelector("main") as HTMLElement;

  /** True while the model answers. */
  get isBusy(): boolean {
    return this.#answer !== undefined;
  }

  /** Ends the answer that runs. */
  stop(): void {
    this.#answer?.abort();
  }

  /** Forgets everything. */
  clear(): void {
    this.stop();
    this.#messages = [];
    this.#list.replaceChildren();
  }

  /** Asks the model, and shows the answer as it comes. Returns a line about its speed. */
  async ask(model: Oxidize, question: string): Promise<string> {
    this.#messages.push({ role: "user", content: question });
    const bubble = document.createElement("li");
    bubble.className = "user";
    bubble.textContent = question;
    const view = new AnswerView();
    this.#list.append(bubble, view.element);
    this.#follow(true);

    const settings = readSettings();
    const options: ChatOptions = {
      temperature: settings.temperature,
      topP: settings.topP,
      topK: settings.topK,
      maxTokens: settings.maxTokens,
      thinking: settings.thinking === "" ? undefined : settings.thinking === "on",
    };
    const system: Message[] = settings.system ? [{ role: "system", content: settings.system }] : [];
    const start = performance.now();
    let first = 0;
    let count = 0;
    const speed = () => (count < 2 ? "" : `${((1000 * (count - 1)) / (performance.now() - first)).toFixed(1)} tokens/s`);
    const answer = model.chat([...system, ...this.#messages], {
      ...options,
      onPrompt: ({ processed, total }) => view.note(`Reading: ${Math.round((100 * processed) / total)}%`),
    });
    this.#answer = answer;
    try {
      for await (const part of answer) {
        if (part.token !== undefined) count += 1;
        if (count === 1 && !first) first = performance.now();
        view.add(part.text, part.reasoning);
        view.note(speed());
        this.#follow(false);
      }
      const end = await answer.done();
      const notes = [
        `${end.generatedTokens} tokens`,
        speed(),
        `first token after ${((first - start) / 1000).toFixed(2)} s`,
        end.finishReason === "context-full" && "the context is full",
        end.finishReason === "length" && "the longest answer is reached",
      ];
      view.finish(notes.filter(Boolean).join(" · "));
      return speed();
    } catch (error) {
      const { name, message, advice } = error as Error & { advice?: string };
      if (name === "AbortError") view.finish(["stopped", speed()].filter(Boolean).join(" · "));
      else view.fail([message, advice].filter(Boolean).join(". "));
      if (name !== "AbortError" && (error as { code?: string }).code !== "context-length") throw error;
      return speed();
    } finally {
      this.#answer = undefined;
      this.#messages.push({ role: "assistant", content: view.text });
      this.#follow(false);
    }
  }

  /** Keeps the end in view, unless the user reads further up. */
  #follow(always: boolean): void {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    if (always || scrollHeight - scrollTop - clientHeight < 120) this.#scroller.scrollTop = scrollHeight;
  }
}

/** An answer on the page. */
class AnswerView {
  readonly element = document.createElement("li");
  text = "";
  #reasoning = "";
  #body = document.createElement("div");
  #details = document.createElement("details");
  #thoughts = document.createElement("div");
  #notes = document.createElement("div");
  #frame = 0;

  constructor() {
    this.element.className = "assistant";
    this.#body.className = "body waiting";
    this.#notes.className = "muted notes";
    const summary = document.createElement("summary");
    summary.textContent = "Reasoning";
    this.#details.append(summary, this.#thoughts);
    this.#details.hidden = true;
    this.element.append(this.#details, this.#body, this.#notes);
  }

  add(text: string, reasoning: string): void {
    this.text += text;
    this.#reasoning += reasoning;
    // Once a frame, however fast the tokens come.
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  note(text: string): void {
    this.#notes.textContent = text;
  }

  finish(note: string): void {
    cancelAnimationFrame(this.#frame);
    this.#draw();
    this.#body.classList.remove("waiting");
    this.note(note);
  }

  fail(message: string): void {
    this.finish(message);
    this.#notes.classList.add("failed");
  }

  #draw(): void {
    this.#frame = 0;
    this.#details.hidden = this.#reasoning === "";
    this.#thoughts.textContent = this.#reasoning;
    this.#body.replaceChildren(renderMarkdown(this.text));
  }
}
