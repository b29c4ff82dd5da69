//! A tiny model that reads images: a language model, a projector with random weights, and test images.

use engine::conformance::Draft;
use engine::gguf::{GgufFile, GgufWriter, Metadata, StringArray, Value};

use crate::text_model_with;

/// Texts that the tiny projector puts around an image.
pub const AROUND_IMAGE: [&str; 2] = ["<fake_token_around_image>", "<global-img>"];

/// Width of the embeddings of the tiny language model.
pub const N_EMBD: usize = 256;

/// Side of the images that the tiny projector takes, in pixels.
pub const IMAGE_SIDE: usize = 112;

/// Number of rows of an image.
pub const IMAGE_ROWS: usize = 16;

/// Returns a language model whose vocabulary has these control tokens instead of its last words.
pub fn vision_model(template: Option<&str>, control: &[&str]) -> Vec<u8> {
    text_model_with("llama", template, |metadata| with_control_tokens(metadata, control))
}

fn with_control_tokens(metadata: &mut Metadata, texts: &[&str]) {
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
    let tokens = tokens.expect("tokens").clone();
    let n = tokens.len() - 2;
    let first = n - texts.len();
    let old = |i: usize| tokens.get(i).and_then(|value| value.as_str().map(str::to_owned));
    let text = |i: usize| {
        if (first..n).contains(&i) {
            texts[i - first].to_owned()
        } else {
            old(i).expect("a text")
        }
    };
    let all: Vec<String> = (0..tokens.len()).map(text).collect();
    let kind = |i: usize| if i < 3 || i >= first { 3 } else { 1 };
    let kinds: Vec<i32> = (0..all.len()).map(kind).collect();
    metadata.insert("tokenizer.ggml.token_type", kinds);
    let all = all.iter().map(String::as_str).collect::<StringArray>();
    metadata.insert("tokenizer.ggml.tokens", all);
}

/// Returns a projector file with rows of `n_out` values.
pub fn projector(n_out: usize) -> Vec<u8> {
    projector_of("idefics3", n_out)
}

/// Returns a projector file of an encoder, with rows of `n_out` values.
pub fn projector_of(encoder: &str, n_out: usize) -> Vec<u8> {
    let arch = archs::find_encoder(encoder).expect("an encoder").arch;
    let mut sizes = arch.test.to_vec();
    let widths = sizes.iter_mut().filter(|(name, _)| *name == "n_out");
    widths.for_each(|(_, n)| *n = n_out as f64);
    let draft = Draft::of_sizes(arch, archs::ENCODERS, &sizes, |_| true).expect("valid sizes");
    draft.seeded(1).expect("a projector")
}

/// Returns a projector file with an image encoder and an audio encoder, with rows of `n_out` values. `named` is the
/// name of the audio encoder in the file.
pub fn projector_of_both(images: &str, audio: &str, named: &str, n_out: usize) -> Vec<u8> {
    let open = |encoder: &str| GgufFile::from_bytes(encoder, &projector_of(encoder, n_out)).expect("a file");
    let (images_file, audio_file) = (open(images), open(audio));
    let mut metadata = images_file.metadata().clone();
    for (key, value) in audio_file
        .metadata()
        .iter()
        .filter(|(key, _)| key.starts_with("clip.audio."))
    {
        metadata.insert(key, value.clone());
    }
    metadata.remove("clip.projector_type");
    metadata.insert("clip.has_audio_encoder", true);
    metadata.insert("clip.vision.projector_type", images);
    metadata.insert("clip.audio.projector_type", named);
    let mut writer = GgufWriter::with_metadata(metadata);
    for file in [&images_file, &audio_file] {
        for tensor in file.tensors() {
            let data = file.tensor_data(tensor).to_vec();
            let added = writer.add_tensor(tensor.name.clone(), tensor.ty, tensor.shape(), data);
            added.expect("a tensor");
        }
    }
    writer.to_bytes().expect("a file in memory")
}

/// Returns the colors of a test image, as 8-bit red, green, and blue values.
pub fn pixels(side: usize, seed: usize) -> Vec<u8> {
    let color = |i: usize| (i * (7 + seed) / 5 + seed) as u8;
    (0..3 * side * side).map(color).collect()
}

/// Returns a BMP file of the square image of [`pixels`].
pub fn bitmap(side: usize, seed: usize) -> Vec<u8> {
    let row = (3 * side).next_multiple_of(4);
    let mut bytes = vec![0; 54 + row * side];
    bytes[..2].copy_from_slice(b"BM");
    let length = bytes.len() as u32;
    for (at, number) in [(2, length), (10, 54), (14, 40), (18, side as u32), (22, side as u32)] {
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    (bytes[26], bytes[28]) = (1, 24);
    let rgb = pixels(side, seed);
    for (y, line) in rgb.chunks_exact(3 * side).enumerate() {
        // The last line comes first, and blue comes before red.
        let start = 54 + (side - 1 - y) * row;
        for (x, color) in line.chunks_exact(3).enumerate() {
            bytes[start + 3 * x..][..3].copy_from_slice(&[color[2], color[1], color[0]]);
        }
    }
    bytes
}
