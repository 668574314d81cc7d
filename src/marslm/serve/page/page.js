// The page: a chat, a comparison, and the knob that both follow.

import { Server } from "/page/api.js";
import { Panel } from "/page/panel.js";

const $ = (id) => document.getElementById(id);
const server = new Server();
const COMPARED = ["ar", "mars", "lossless"];
let model = "";
let messages = [];
let view = "chat";
let running = null;

async function start() {
  try {
    model = await server.model();
    $("model").textContent = model;
    showSpeed(await server.speed());
    say("");
  } catch (error) {
    if (error.status === 401) $("key-field").hidden = false;
    say(error.message);
  }
}

function say(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
}

function showSpeed({ strategy, tau }) {
  if (![...$("strategy").options].some((option) => option.value === strategy)) {
    $("strategy").add(new Option(strategy));
  }
  $("strategy").value = strategy;
  $("tau").value = tau;
  $("tau-value").textContent = tau.toFixed(2);
}

// Turns are sent one after another, the latest last, so that the knob ends where the hand left it.
let wanted = null;
let turning = false;
async function turn(change) {
  wanted = { ...wanted, ...change };
  if (turning) return;
  turning = true;
  try {
    while (wanted) {
      const now = wanted;
      wanted = null;
      const speed = await server.speed(now);
      if (!wanted) showSpeed(speed);
    }
  } catch (error) {
    say(error.message);
  }
  turning = false;
}

function body(messages, marslm) {
  return { model, messages, marslm, temperature: 0, max_tokens: Number($("length").value) };
}

async function fill(panel, request, signal) {
  try {
    for await (const run of server.chat(request, signal)) panel.add(run);
  } catch (error) {
    panel.fail(signal.aborted ? "stopped" : error.message);
    return false;
  }
  return true;
}

async function chat(prompt, signal) {
  const asked = document.createElement("li");
  asked.className = "asked";
  asked.textContent = prompt;
  const item = document.createElement("li");
  const panel = new Panel();
  item.append(panel.element);
  $("turns").append(asked, item);
  item.scrollIntoView({ block: "end" });
  const turns = [...messages, { role: "user", content: prompt }];
  const whole = await fill(panel, body(turns), signal);
  if (whole || panel.text) messages = [...turns, { role: "assistant", content: panel.text }];
}

// All three at once, each with its strategy; mars sets no tau and so follows the slider.
async function compare(prompt, signal) {
  const heading = document.createElement("h3");
  heading.textContent = prompt;
  const panels = COMPARED.map((strategy) => new Panel(strategy));
  $("compare").replaceChildren(heading, ...panels.map((panel) => panel.element));
  const turns = [{ role: "user", content: prompt }];
  await Promise.all(panels.map((panel, i) => fill(panel, body(turns, { strategy: COMPARED[i] }), signal)));
}

async function ask() {
  const prompt = $("prompt").value;
  if (running || !prompt.trim()) return;
  $("prompt").value = "";
  running = new AbortController();
  $("send").hidden = true;
  $("stop").hidden = false;
  await (view === "chat" ? chat : compare)(prompt, running.signal);
  running = null;
  $("send").hidden = false;
  $("stop").hidden = true;
  $("prompt").focus();
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); }
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => {
  running?.abort();
  messages = [];
  $("turns").replaceChildren();
  $("compare").replaceChildren();
});
$("tau").addEventListener("input", () => {
  $("tau-value").textContent = Number($("tau").value).toFixed(2);
  turn({ tau: Number($("tau").value) });
});
$("strategy").addEventListener("change", () => turn({ strategy: $("strategy").value }));
$("key").addEventListener("change", () => { server.key = $("key").value; start(); });
for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => {
    view = button.dataset.view;
    for (const other of document.querySelectorAll("[data-view]")) {
      other.setAttribute("aria-pressed", String(other === button));
      $(other.dataset.view).hidden = other !== button;
    }
  });
}
// Others may turn the knob too, and so may the load policy.
setInterval(async () => {
  if (document.hidden || wanted || turning || !model) return;
  try { showSpeed(await server.speed()); } catch { /* the next look may succeed */ }
}, 2000);
start();
