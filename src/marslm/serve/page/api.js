// The server as this page sees it. Knows nothing about the document.

export class Server {
  key = "";

  async #fetch(path, options = {}) {
    const headers = { "content-type": "application/json" };
    if (this.key) headers.authorization = `Bearer ${this.key}`;
    const response = await fetch(path, { ...options, headers });
    if (response.ok) return response;
    const body = await response.json().catch(() => null);
    throw Object.assign(new Error(body?.error?.message ?? response.statusText), { status: response.status });
  }

  async model() {
    return (await (await this.#fetch("/v1/models")).json()).data[0].id;
  }

  async speed(change) {
    const options = change && { method: "PUT", body: JSON.stringify(change) };
    return (await this.#fetch("/v1/speed", options)).json();
  }

  // Yields {text, tokens} for each run of one streamed chat.
  async *chat(body, signal) {
    const response = await this.#fetch("/v1/chat/completions", {
      method: "POST", body: JSON.stringify({ ...body, stream: true }), signal,
    });
    for await (const data of events(response.body)) {
      if (data.error) throw new Error(data.error.message);
      if (data.marslm) yield { text: data.choices[0].delta.content, tokens: data.marslm.tokens };
    }
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
