//! A tiny Whisper with random weights that reads windows of 30 seconds.

use engine::gguf::{Gguf, GgufWriter, StringArray, Value, seeded};
use kernels::GgmlType;

use crate::data_dir;

/// Positions of the encoder: 30 seconds.
const N_POSITIONS: usize = 1500;
/// Index of the token `<|notimestamps|>`, which is followed by the timestamps.
const NO_TIMESTAMPS: usize = 55;

/// Returns the model file.
pub fn whisper_model() -> Vec<u8> {
    let header = Gguf::open_header(data_dir().join("whisper/tiny.gguf")).expect("a header");
    let n_vocab = NO_TIMESTAMPS + 2 + N_POSITIONS;
    let mut metadata = header.metadata.clone();
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
    let tokens = tokens.expect("tokens").clone();
    let text = |i: usize| match tokens.get(i) {
        Some(known) if i <= NO_TIMESTAMPS => known.as_str().expect("a text").to_owned(),
        _ => format!("<|time {i}|>"),
    };
    let all: Vec<String> = (0..n_vocab).map(text).collect();
    metadata.insert(
        "tokenizer.ggml.tokens",
        all.iter().map(String::as_str).collect::<StringArray>(),
    );
    metadata.insert("tokenizer.ggml.token_type", vec![1_i32; n_vocab]);
    metadata.insert("whisper.vocab_size", n_vocab as u32);
    metadata.insert("whisper.context_length", N_POSITIONS as u32);
    let mut writer = GgufWriter::with_metadata(metadata);
    for tensor in header.tensors() {
        let mut shape = tensor.shape().to_vec();
        match tensor.name.as_str() {
            "token_embd.weight" => shape[1] = n_vocab,
            "enc.position_embd.weight" => shape[1] = N_POSITIONS,
            _ => {}
        }
        let n: usize = shape.iter().product();
        let weights = seeded::weights_of(&header.metadata, &tensor.name, n, 1).expect("weights");
        let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        writer
            .add_tensor(tensor.name.clone(), GgmlType::F32, &shape, bytes)
            .expect("a tensor");
    }
    let mut file = Vec::new();
    writer.write(&mut file).expect("a file in memory");
    file
}

/// Returns a mono WAV file of 16-bit samples at `rate` Hz.
pub fn wav(samples: &[i16], rate: u32) -> Vec<u8> {
    let n = 2 * samples.len() as u32;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + n).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16_u32.to_le_bytes());
    file.extend([1, 0, 1, 0]);
    file.extend(rate.to_le_bytes());
    file.extend((2 * rate).to_le_bytes());
    file.extend([2, 0, 16, 0]);
    file.extend(b"data");
    file.extend(n.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    file
}
