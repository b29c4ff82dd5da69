// Parser for server-sent events.

/** Incremental parser; returns the data of complete events. */
export class EventReader {
  #rest = '';
  #data = [];

  /** Returns the data of the events that end within `text`. */
  push(text) {
    const events = [];
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop();
    for (const whole of lines) {
      const line = whole.endsWith('\r') ? whole.slice(0, -1) : whole;
      if (line === '') {
        if (this.#data.length > 0) {
          events.push(this.#data.join('\n'));
        }
        this.#data = [];
      } else if (line.startsWith('data:')) {
        this.#data.push(line.slice(line[5] === ' ' ? 6 : 5));
      }
    }
    return events;
  }
}
