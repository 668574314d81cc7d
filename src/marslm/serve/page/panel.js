// One answer: its text, coloured by accepted run, and its figures, live.

const COLOURS = 4;

export class Panel {
  text = "";
  #runs = [];
  #start = performance.now();
  #first = null;
  #last = null;
  #coloured = 0;

  constructor(title = "") {
    const template = document.getElementById("panel");
    this.element = template.content.firstElementChild.cloneNode(true);
    this.element.querySelector("h2").textContent = title;
  }

  add({ text, tokens }) {
    this.text += text;
    if (tokens) {
      this.#last = performance.now();
      this.#first ??= this.#last;
      this.#runs.push(tokens);
    }
    if (text) this.#write(text, tokens);
    this.#show();
  }

  fail(message) {
    this.element.classList.add("failed");
    this.#write(` (${message})`, 1);
  }

  // A run of several tokens has a background; single tokens have none.
  #write(text, tokens) {
    const span = document.createElement("span");
    span.textContent = text;
    if (tokens > 1) {
      span.className = `run-${this.#coloured++ % COLOURS}`;
      span.title = `${tokens} tokens in one forward`;
    }
    this.element.querySelector(".text").append(span);
  }

  #show() {
    const forwards = this.#runs.length;
    if (!forwards) return;
    const tokens = this.#runs.reduce((sum, run) => sum + run, 0);
    const seconds = (this.#last - this.#first) / 1000;
    this.#figure("rate", (tokens / forwards).toFixed(2));
    this.#figure("speed", seconds > 0 ? ((tokens - this.#runs[0]) / seconds).toFixed(1) : "–");
    this.#figure("tokens", tokens);
    this.#figure("first", `${Math.round(this.#first - this.#start)} ms`);
    this.#positions(forwards);
  }

  #figure(name, value) {
    this.element.querySelector(`[data-figure=${name}]`).textContent = value;
  }

  #positions(forwards) {
    const longest = Math.max(...this.#runs);
    const bars = Array.from({ length: longest }, (_, place) => {
      const share = this.#runs.filter((run) => run > place).length / forwards;
      const bar = document.createElement("div");
      const fill = document.createElement("i");
      fill.style.height = `${Math.max(1, 32 * share)}px`;
      bar.title = `${Math.round(100 * share)} % of forwards brought at least ${place + 1}`;
      bar.append(`${Math.round(100 * share)}%`, fill, `${place + 1}`);
      return bar;
    });
    this.element.querySelector(".positions").replaceChildren(...bars);
  }
}
