// Records the microphone as WAV, since browsers record formats that the server does not decode.

/** Sample rate of recordings in Hz, which the audio encoders read. */
const RATE = 16000;

/** Maximum length of a recording in milliseconds. The file then has 18 MiB, which is within the limit of attachments. */
const MAX_TIME = 10 * 60 * 1000;

/** Returns true if the browser offers the microphone to this page, which needs TLS or a local address. */
export function canRecord() {
  return Boolean(globalThis.navigator?.mediaDevices?.getUserMedia) && typeof MediaRecorder === 'function';
}

/** A running recording. */
export class Recording {
  #stream;
  #recorder;
  #parts = [];
  #timer;
  /** Resolves when the recording has ended: with its WAV file, or `null` if it was cancelled. */
  result;

  /** Asks for the microphone and starts to record. Rejects if the microphone is not available. */
  static async start(name) {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    return new Recording(stream, name);
  }

  constructor(stream, name) {
    this.#stream = stream;
    this.#recorder = new MediaRecorder(stream);
    this.#recorder.addEventListener('dataavailable', ({ data }) => this.#parts?.push(data));
    const ended = new Promise((resolve) => this.#recorder.addEventListener('stop', resolve));
    this.result = ended.then(() => this.#file(name));
    this.#recorder.start();
    this.#timer = setTimeout(() => this.stop(), MAX_TIME);
  }

  /** Ends the recording, also when called again. */
  stop() {
    clearTimeout(this.#timer);
    if (this.#recorder.state !== 'inactive') {
      this.#recorder.stop();
    }
    this.#stream.getTracks().forEach((track) => track.stop());
  }

  /** Ends the recording without a result. */
  cancel() {
    this.#parts = null;
    this.stop();
  }

  async #file(name) {
    if (this.#parts === null) {
      return null;
    }
    const bytes = await new Blob(this.#parts).arrayBuffer();
    // Decoding resamples to the rate of the context.
    const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(bytes);
    const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
    return new File([wav(channels, sound.sampleRate)], name, { type: 'audio/wav' });
  }
}

/** Returns a WAV file with 16 bits per sample and the mean of the channels, arrays of samples from -1 to 1. */
export function wav(channels, rate) {
  const n = channels[0].length;
  const file = new DataView(new ArrayBuffer(44 + 2 * n));
  const text = (at, value) => [...value].forEach((c, i) => file.setUint8(at + i, c.charCodeAt(0)));
  text(0, 'RIFF');
  file.setUint32(4, 36 + 2 * n, true);
  text(8, 'WAVEfmt ');
  file.setUint32(16, 16, true);
  // Integers, one channel.
  file.setUint16(20, 1, true);
  file.setUint16(22, 1, true);
  file.setUint32(24, rate, true);
  file.setUint32(28, 2 * rate, true);
  file.setUint16(32, 2, true);
  file.setUint16(34, 16, true);
  text(36, 'data');
  file.setUint32(40, 2 * n, true);
  for (let i = 0; i < n; i += 1) {
    const mean = channels.reduce((sum, samples) => sum + samples[i], 0) / channels.length;
    file.setInt16(44 + 2 * i, Math.round(Math.max(-1, Math.min(1, mean)) * 32767), true);
  }
  return file.buffer;
}

/** Formats a time in milliseconds: `0:07`, `1:30`. */
export function clock(time) {
  const seconds = Math.floor(time / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
}
