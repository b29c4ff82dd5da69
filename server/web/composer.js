// Message input, with generation speed and context usage.

import { attachment, validFiles } from './attachments.js';
import { chip, thumbnail } from './chips.js';
import { filled, rate } from './completion.js';
import { byId, h, icon } from './dom.js';
import { isLoaded, reads } from './models.js';
import { notice } from './notices.js';
import { canRecord, clock, Recording } from './recorder.js';
import { keep, kept } from './store.js';
import { path } from './tree.js';

export class Composer {
  #app;
  #area = byId('question');
  #send = byId('send');
  #figures = byId('figures');
  #chips = byId('chips');
  #files = [];
  /** Attached images; drafts in the browser's storage do not contain them. */
  #images = [];
  #record = byId('record');
  /** The running recording, `true` while the browser asks for the microphone, or `null`. */
  #recording = null;
  #recordings = 0;
  #timer;
  #chat;

  constructor(app) {
    this.#app = app;
    const files = byId('files');
    byId('attach').append(icon('file'));
    byId('attach').addEventListener('click', () => files.click());
    files.addEventListener('change', () => this.#addFiles([...files.files]).then(() => (files.value = '')));
    this.#record.append(icon('mic'));
    this.#record.addEventListener('click', () => this.#toggleRecording());
    byId('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.#pressed();
    });
    this.#area.addEventListener('keydown', (event) => this.#key(event));
    this.#area.addEventListener('input', () => this.#changed());
    this.#area.addEventListener('paste', (event) => this.#take(event, event.clipboardData));
    document.addEventListener('dragover', (event) => event.preventDefault());
    document.addEventListener('drop', (event) => this.#take(event, event.dataTransfer));
    app.addEventListener('chat', () => this.#opened());
    for (const type of ['node', 'server']) {
      app.addEventListener(type, () => this.#show());
    }
    this.#opened();
  }

  focus() {
    this.#area.focus();
  }

  #draft(chat) {
    return this.#app.begun(chat) ? `draft.${chat.id}` : 'draft';
  }

  #opened() {
    const { current } = this.#app;
    if (this.#chat !== current.id) {
      this.#chat = current.id;
      this.#area.value = kept(this.#draft(current), '');
      this.#files = validFiles(kept(`${this.#draft(current)}.files`, []));
      this.#images = [];
      this.#cancelRecording();
      this.#showChips();
      this.#grow();
    }
    this.#show();
  }

  #changed() {
    keep(this.#draft(this.#app.current), this.#area.value || null);
    keep(`${this.#draft(this.#app.current)}.files`, this.#files.length > 0 ? this.#files : null);
    this.#grow();
    this.#show();
  }

  /** Adjusts the height to the text, up to the CSS limit. */
  #grow() {
    this.#area.style.height = 'auto';
    this.#area.style.height = `${this.#area.scrollHeight}px`;
  }

  #key(event) {
    // Enter also confirms input-method composition, and starts a new line on phones.
    const isTouch = matchMedia('(pointer: coarse)').matches;
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && !isTouch) {
      event.preventDefault();
      if (!this.#app.running()) {
        this.#pressed();
      }
    }
  }

  #pressed() {
    if (this.#app.running()) {
      this.#app.stop();
      return;
    }
    const text = this.#area.value.trim();
    const [files, images] = [this.#files, this.#images];
    if (this.#isEmpty()) {
      return;
    }
    this.#area.value = '';
    this.#files = [];
    this.#images = [];
    this.#changed();
    this.#showChips();
    this.#app.send(text, files, images);
    this.focus();
  }

  #isEmpty() {
    return this.#area.value.trim() === '' && this.#files.length === 0 && this.#images.length === 0;
  }

  #take(event, data) {
    const files = [...(data?.files ?? [])];
    if (files.length > 0) {
      event.preventDefault();
      this.#addFiles(files);
    }
  }

  /** Starts or ends a recording. An ended one is attached. */
  async #toggleRecording() {
    if (this.#recording !== null) {
      this.#recording.stop?.();
      return;
    }
    this.#recording = true;
    const chat = this.#chat;
    try {
      const recording = await Recording.start(`Recording ${this.#recordings + 1}.wav`);
      if (this.#chat !== chat) {
        recording.cancel();
        return;
      }
      this.#recordings += 1;
      this.#recording = recording;
      this.#showRecording(Date.now());
      const file = await recording.result;
      if (file !== null) {
        await this.#addFiles([file]);
      }
    } catch (error) {
      notice(`The microphone cannot be recorded: ${error.message}`);
    } finally {
      if (this.#chat === chat) {
        this.#recording = null;
        this.#showRecording(null);
      }
    }
  }

  #cancelRecording() {
    this.#recording?.cancel?.();
    this.#recording = null;
    this.#showRecording(null);
  }

  /** Shows the time since `start`, or the end of the recording for `null`. */
  #showRecording(start) {
    const time = byId('recording');
    clearInterval(this.#timer);
    time.hidden = start === null;
    if (start !== null) {
      const show = () => (time.textContent = clock(Date.now() - start));
      this.#timer = setInterval(show, 500);
      show();
    }
    this.#show();
  }

  async #addFiles(files) {
    const chat = this.#chat;
    const model = this.#app.model();
    const read = await Promise.all(files.map((file) => attachment(file, model)));
    if (this.#chat !== chat) {
      notice('The files were not attached, because another chat was opened.');
      return;
    }
    for (const { problem, image, text } of read) {
      if (problem) {
        notice(problem);
      } else if (image) {
        this.#images = [...this.#images, image];
      } else {
        this.#files = [...this.#files, text];
      }
    }
    this.#changed();
    this.#showChips();
    this.focus();
  }

  #showChips() {
    const remove = (file) => {
      this.#files = this.#files.filter((other) => other !== file);
      this.#images = this.#images.filter((other) => other !== file);
      this.#changed();
      this.#showChips();
      this.focus();
    };
    const thumbnails = this.#images.map((image) => thumbnail(image, () => remove(image)));
    this.#chips.replaceChildren(...thumbnails, ...this.#files.map((file) => chip(file, () => remove(file))));
    this.#chips.hidden = this.#chips.childElementCount === 0;
  }

  #show() {
    const running = this.#app.running();
    const label = running ? 'Stop' : 'Send';
    if (this.#send.getAttribute('aria-label') !== label) {
      this.#send.setAttribute('aria-label', label);
      this.#send.title = running ? 'Stop (Esc)' : 'Send (Enter)';
    }
    if (this.#send.dataset.icon !== label) {
      this.#send.dataset.icon = label;
      this.#send.replaceChildren(icon(running ? 'stop' : 'send'));
    }
    this.#send.disabled = !running && this.#isEmpty();
    this.#showRecordButton();
    this.#showFigures(running);
  }

  #showRecordButton() {
    const isOn = this.#recording !== null;
    const model = this.#app.model();
    this.#record.hidden = !isOn && !(canRecord() && isLoaded(model) && reads(model, 'audio'));
    this.#record.title = isOn ? 'End the recording' : 'Record audio';
    this.#record.setAttribute('aria-label', this.#record.title);
    this.#record.setAttribute('aria-pressed', isOn);
  }

  #showFigures(running) {
    const answers = path(this.#app.current).filter((node) => node.role === 'assistant' && filled(node.stats) !== null);
    const n = filled(answers.at(-1)?.stats);
    const size = this.#app.model()?.max_model_len;
    const speed = running ? rate(running.stats) : null;
    const parts = [];
    if (n !== null && n !== undefined && size) {
      const words = `${n.toLocaleString('en')} of ${size.toLocaleString('en')} tokens`;
      const meter = h('meter', { min: 0, max: size, high: size * 0.85, value: n, 'aria-label': 'Context in use', title: `Context: ${words} used` }, words);
      parts.push(meter, h('span', {}, words));
    }
    if (speed !== null) {
      parts.push(h('span', { class: 'live' }, `${speed.toFixed(1)} tokens per second`));
    }
    this.#figures.replaceChildren(...parts);
  }
}
