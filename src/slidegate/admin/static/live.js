// Keeps the page up to date: by server-sent events, and by asking again and again where those cannot be had.

import { get } from "./api.js";

const POLL_MS = 5000;
const TRY_STREAM_AGAIN_MS = 60000;
const QUIET_MS = 20000;

export class Live {
  // `frame(data)` takes what is new, `state(name)` one of "live", "polling", "waiting" and "lost".
  constructor(frame, state) {
    Object.assign(this, { frame, state, window: "5m", source: null, running: false, timers: new Set() });
    document.addEventListener("visibilitychange", () => this.running && (document.hidden ? this.pause() : this.open()));
  }

  start(window) {
    this.running = true;
    this.window = window;
    if (!document.hidden) this.open();
  }

  stop() {
    this.running = false;
    this.pause();
  }

  pause() {
    this.source?.close();
    this.source = null;
    this.round = (this.round ?? 0) + 1;
    for (const timer of this.timers) clearTimeout(timer);
    this.timers.clear();
  }

  later(delay, action) {
    const timer = setTimeout(() => { this.timers.delete(timer); action(); }, delay);
    this.timers.add(timer);
    return timer;
  }

  open() {
    this.pause();
    this.state("waiting");
    const source = new EventSource(`api/live?window=${encodeURIComponent(this.window)}`);
    let failures = 0;
    this.source = source;
    source.addEventListener("frame", (event) => {
      failures = 0;
      this.state("live");
      this.listen();
      this.frame(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      // The browser connects again by itself, unless the answer was a refusal. A stream that ends is one error; a
      // second one without a frame between them means that there is nothing to connect to.
      failures += 1;
      if (source.readyState === EventSource.CLOSED || failures > 1) this.poll();
    });
    this.listen();
  }

  // A stream that is open and says nothing may be one whose worker is gone.
  listen() {
    clearTimeout(this.silence);
    this.timers.delete(this.silence);
    this.silence = this.later(QUIET_MS, () => { this.state("lost"); this.poll(); });
  }

  poll() {
    this.pause();
    const { round } = this;
    let lost = false;
    this.later(TRY_STREAM_AGAIN_MS, () => this.open());
    const ask = async () => {
      try {
        const data = await get("now", { window: this.window });
        if (round !== this.round) return;
        this.state("polling");
        this.frame(data);
        // The server is back, and may have a stream again.
        if (lost) { this.open(); return; }
      } catch (problem) {
        if (round !== this.round) return;
        lost = true;
        this.state("lost", problem);
      }
      if (this.running) this.later(POLL_MS, ask);
    };
    ask();
  }
}
