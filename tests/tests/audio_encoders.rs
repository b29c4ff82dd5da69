//! Audio encoders against transformers: the rows of a spectrogram, and the logits of a language model with the rows
//! between tokens. `tests/tools/record_audio.py` made the recordings.

use std::path::PathBuf;
use std::sync::Arc;

use engine::builder::{AudioRules, Silence, Spectrogram};
use engine::conformance::{CheckParams, Draft};
use engine::context::{AudioEncoder, AudioError, Context, ContextParams, MediaRows};
use engine::gguf::logits::Logits;
use engine::gguf::{Gguf, seeded};
use engine::graph::RopeKind;
use engine::random::splitmix64;
use tests::emulator::with_device;
use tests::{data_dir, exact, place_on};

use crate::cuda::card;
use crate::encoders::{load, logits, plausible};

/// Samples between frames.
const HOP: usize = 160;

/// An encoder with a language model that reads its rows.
struct Family {
    encoder: &'static str,
    text: &'static str,
    /// Frames of the recorded audio.
    n_frames: usize,
    /// Tensors of the encoder that the published model has no bias for.
    without_bias: &'static [&'static str],
    /// Tensors of the language model with a bias.
    text_bias: &'static [&'static str],
    /// Sizes of the language model.
    sizes: &'static [(&'static str, f64)],
    /// Matrices in the layers of the encoder with bounds of their inputs and results.
    bounded: &'static [&'static str],
    /// Layer whose input the projector of Granite Speech also reads.
    kept_layer: Option<u32>,
}

const FAMILIES: [Family; 15] = [
    // An odd number of positions: the last one is attended to, but is unpaired.
    Family {
        encoder: "qwen2a",
        text: "qwen2",
        n_frames: 61,
        without_bias: &["attn_k"],
        text_bias: &["attn_q", "attn_k", "attn_v"],
        sizes: SIZES,
        bounded: &[],
        kept_layer: None,
    },
    // Two chunks.
    Family {
        encoder: "voxtral",
        text: "llama",
        n_frames: 130,
        without_bias: &["attn_k", "mm.a.mlp.1", "mm.a.mlp.2"],
        text_bias: &[],
        sizes: SIZES,
        bounded: &[],
        kept_layer: None,
    },
    // An odd number of frames: the last position has a frame after the end of the audio.
    Family {
        encoder: "ultravox",
        text: "llama",
        n_frames: 53,
        without_bias: &["attn_k", "mm.a.mlp.1", "mm.a.mlp.2"],
        text_bias: &[],
        sizes: SIZES,
        bounded: &[],
        kept_layer: None,
    },
    Family {
        encoder: "musicflamingo",
        text: "qwen2",
        n_frames: 61,
        without_bias: &["attn_k"],
        text_bias: &["attn_q", "attn_k", "attn_v"],
        sizes: SIZES,
        bounded: &[],
        kept_layer: None,
    },
    // An odd number of frames, and more rows than the window of attention.
    Family {
        encoder: "gemma4a",
        text: "gemma4",
        n_frames: 64,
        without_bias: GEMMA4_WITHOUT_BIAS,
        text_bias: &[],
        sizes: GEMMA4_SIZES,
        bounded: GEMMA4_BOUNDED,
        kept_layer: None,
    },
    // Two windows of attention. The last piece is not filled.
    Family {
        encoder: "qwen3a",
        text: "qwen3vl",
        n_frames: 930,
        without_bias: &["a.conv_out"],
        text_bias: &[],
        sizes: SIZES,
        bounded: &[],
        kept_layer: None,
    },
    // Two chunks. The second one ends with silence, which is encoded.
    Family {
        encoder: "glma",
        text: "llama",
        n_frames: 141,
        without_bias: &["attn_k"],
        text_bias: &[],
        sizes: SIZES,
        bounded: &[],
        kept_layer: None,
    },
    // A frame without a pair, and a part of a block and of a window.
    Family {
        encoder: "granite_speech",
        text: "granite",
        n_frames: 64,
        without_bias: &["attn_q", "attn_k", "attn_v"],
        text_bias: &[],
        sizes: SIZES,
        bounded: &[],
        kept_layer: None,
    },
    // Two chunks. The last one has an odd number of frames.
    Family {
        encoder: "lfm2a",
        text: "lfm2",
        n_frames: 203,
        without_bias: &["linear_pos"],
        text_bias: &[],
        sizes: LFM2_SIZES,
        bounded: &[],
        kept_layer: None,
    },
    Family {
        encoder: "parakeet",
        text: "nemotron_h",
        n_frames: 61,
        without_bias: &["linear_pos", "mm.a.mlp.1", "mm.a.mlp.2"],
        text_bias: &[],
        sizes: NEMOTRON_SIZES,
        bounded: &[],
        kept_layer: None,
    },
    // Two chunks. The last chunk has an odd number of positions, and its last frame has no successor.
    Family {
        encoder: "qwen2.5o",
        text: "qwen2vl",
        n_frames: 125,
        without_bias: &["attn_k"],
        text_bias: &["attn_q", "attn_k", "attn_v"],
        sizes: SIZES,
        bounded: &[],
        kept_layer: None,
    },
    // A part of the samples of the last row.
    Family {
        encoder: "gemma4ua",
        text: "gemma4",
        n_frames: 10,
        without_bias: &["mm.a.input_projection"],
        text_bias: &[],
        sizes: GEMMA4_UNIFIED_SIZES,
        bounded: &[],
        kept_layer: None,
    },
    // The input of a layer, which the letters are added to, precedes the results.
    Family {
        encoder: "granite_speech",
        text: "granite",
        n_frames: 40,
        without_bias: &["attn_q", "attn_k", "attn_v"],
        text_bias: &[],
        sizes: SIZES,
        bounded: &[],
        kept_layer: Some(1),
    },
    // Two chunks. The last position has no whole frame.
    Family {
        encoder: "dots3note_a",
        text: "qwen2",
        n_frames: 136,
        without_bias: &["a.conv_out", "attn_k"],
        text_bias: &["attn_q", "attn_k", "attn_v"],
        sizes: SIZES,
        bounded: &[],
        kept_layer: None,
    },
    // Two chunks.
    Family {
        encoder: "meralion",
        text: "llama",
        n_frames: 130,
        without_bias: &["attn_k"],
        text_bias: &[],
        sizes: SIZES,
        bounded: &[],
        kept_layer: None,
    },
];

const LFM2_SIZES: &[(&str, f64)] = &[
    ("n_embd", 64.0),
    ("n_head", 4.0),
    ("n_head_kv", 2.0),
    ("n_layer", 2.0),
    ("n_ff", 96.0),
    ("n_vocab", 128.0),
    ("l_cache", 3.0),
];

/// Layers without heads of keys and without a feed-forward network are mixers of Mamba 2.
const NEMOTRON_SIZES: &[(&str, f64)] = &[
    ("n_embd", 64.0),
    ("n_head", 4.0),
    ("n_head_kv", 0.0),
    ("n_layer", 2.0),
    ("n_ff", 0.0),
    ("n_vocab", 128.0),
    ("d_conv", 4.0),
    ("d_inner", 128.0),
    ("d_state", 16.0),
    ("n_ssm", 4.0),
    ("n_group", 2.0),
];

/// No per-layer embeddings, as in the published models without an encoder.
const GEMMA4_UNIFIED_SIZES: &[(&str, f64)] = &[
    ("n_embd", 64.0),
    ("n_head", 4.0),
    ("n_head_kv", 2.0),
    ("head_dim", 32.0),
    ("head_dim_v", 32.0),
    ("head_dim_swa", 16.0),
    ("head_dim_v_swa", 16.0),
    ("n_rot_swa", 16.0),
    ("n_layer", 2.0),
    ("n_ff", 96.0),
    ("n_vocab", 128.0),
    ("n_swa", 20.0),
    ("n_pl", 0.0),
];

const GEMMA4_BOUNDED: &[&str] = &[
    "ffn_up",
    "ffn_down",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_out",
    "conv_pw1",
    "conv_pw2",
    "ffn_up_1",
    "ffn_down_1",
];

const GEMMA4_WITHOUT_BIAS: &[&str] = &[
    "a.conv1d.0",
    "a.conv1d.1",
    "a.input_projection",
    "mm.a.input_projection",
    "attn_k_rel",
    "ffn_up",
    "ffn_down",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_out",
    "conv_pw1",
    "conv_pw2",
    "ffn_up_1",
    "ffn_down_1",
];

/// Per-layer embeddings, as in the published models that read audio. The last two layers share keys with earlier
/// layers.
const GEMMA4_SIZES: &[(&str, f64)] = &[
    ("n_embd", 64.0),
    ("n_head", 4.0),
    ("n_head_kv", 2.0),
    ("head_dim", 32.0),
    ("head_dim_v", 32.0),
    ("head_dim_swa", 16.0),
    ("head_dim_v_swa", 16.0),
    ("n_rot_swa", 16.0),
    ("n_layer", 4.0),
    ("n_sharing", 2.0),
    ("n_ff", 96.0),
    ("n_vocab", 128.0),
    ("n_swa", 20.0),
    ("n_pl", 8.0),
];

const SIZES: &[(&str, f64)] = &[
    ("n_embd", 64.0),
    ("n_head", 4.0),
    ("n_head_kv", 2.0),
    ("n_layer", 2.0),
    ("n_ff", 96.0),
    ("n_vocab", 128.0),
];

impl Family {
    fn path(&self, suffix: &str) -> PathBuf {
        let variant = if self.kept_layer.is_some() { "-plus" } else { "" };
        data_dir().join(format!("encoders/{}{variant}{suffix}", self.encoder))
    }

    /// Returns the drafts of the encoder and of the language model.
    fn drafts(&self) -> [Draft; 2] {
        let arch = archs::find_encoder(self.encoder).unwrap().arch;
        let mut encoder = Draft::of_declaration(arch, archs::ENCODERS, true).unwrap();
        encoder.add_biases(arch, archs::ENCODERS, |t| !self.without_bias.contains(&t.gguf));
        if let Some(layer) = self.kept_layer {
            encoder.metadata.insert("clip.audio.feature_layer", vec![layer]);
            let is_wide = |name: &str| name.ends_with("cross_attn_k.weight") || name.ends_with("cross_attn_v.weight");
            let wide = encoder.tensors.iter_mut().filter(|(name, _)| is_wide(name));
            wide.for_each(|(_, ne)| ne[0] *= 2);
        }
        if self.encoder == "lfm2a" {
            // The statistics are folded into scale and shift in files.
            encoder.tensors.retain(|(name, _)| !name.contains(".conv_norm_"));
        }
        for suffix in ["input_min", "input_max", "output_min", "output_max"] {
            let has = |prefix: &String| {
                encoder
                    .tensors
                    .iter()
                    .any(|(name, _)| *name == format!("{prefix}.weight"))
            };
            let layers = |name: &&str| -> Vec<String> {
                let of_layer = |il: usize| format!("a.blk.{il}.{name}");
                (0..).map(of_layer).take_while(has).collect()
            };
            let bounded: Vec<String> = self.bounded.iter().flat_map(layers).collect();
            let bounds = bounded
                .into_iter()
                .map(|prefix| (format!("{prefix}.{suffix}"), vec![1]));
            encoder.tensors.extend(bounds);
        }
        let arch = archs::find(self.text).unwrap().arch;
        let optional = |gguf: &str| self.text == "gemma4" && ["attn_v", "layer_output_scale"].contains(&gguf);
        let mut text = Draft::of_sizes(arch, archs::ALL, self.sizes, |t| optional(t.gguf)).unwrap();
        // Layers that share keys ignore this tensor.
        text.tensors
            .retain(|(name, ne)| !name.ends_with("attn_v.weight") || *ne != [1]);
        text.add_biases(arch, archs::ALL, |t| self.text_bias.contains(&t.gguf));
        if arch.rope == Some(RopeKind::Imrope) {
            let key = format!("{}.rope.dimension_sections", self.text);
            text.metadata.insert(key, vec![4i32, 2, 2, 0]);
        }
        [encoder, text]
    }

    /// Returns the bytes of the encoder's file and of the language model's file.
    fn files(&self) -> [Vec<u8>; 2] {
        [".header.gguf", "-text.header.gguf"].map(|suffix| {
            let header = Gguf::open_header(self.path(suffix)).unwrap();
            plausible(seeded::seeded_model(&header, 1).unwrap())
        })
    }

    fn encoder(&self, params: &CheckParams) -> AudioEncoder {
        let model = load(&self.files()[0], archs::ENCODERS, params).unwrap();
        AudioEncoder::new(model, &params.context).unwrap()
    }

    fn recorded(&self, suffix: &str) -> Logits {
        Logits::read(self.path(suffix)).unwrap()
    }

    fn rows(&self, encoder: &mut AudioEncoder) -> Arc<MediaRows> {
        // The last position of `dots3note_a` covers a part of a frame.
        let rest = if self.encoder == "dots3note_a" { 60 } else { 0 };
        let (n_samples, rules) = (self.n_frames * HOP + rest, encoder.rules());
        encoder.encode(n_samples, &spectrogram(&rules, n_samples)).unwrap()
    }

    /// Checks the NMSE of the rows and of the logits. Random weights of Gemma 4 amplify rounding errors in the logits.
    fn is_close(&self, [rows, logits]: [f64; 2]) -> bool {
        rows <= 1e-10 && logits <= if self.text == "gemma4" { 1e-8 } else { 1e-10 }
    }

    /// Returns the NMSE of the rows, and of the logits with these rows in their context.
    fn errors(&self, params: &CheckParams, pieces: bool) -> [f64; 2] {
        let rows = self.rows(&mut self.encoder(params));
        let (recorded, text) = (self.recorded(".logits"), &self.files()[1]);
        let context = ContextParams {
            n_ctx: 160,
            n_outputs_max: 160,
            media_rows: rows.len(),
            ..params.context.clone()
        };
        let mut ctx = Context::new(load(text, archs::ALL, params).unwrap(), &context).unwrap();
        let logits = logits(&mut ctx, recorded.tokens(), std::slice::from_ref(&rows), pieces);
        [self.recorded(".rows").nmse(rows.rows()), recorded.nmse(&logits)]
    }
}

/// Returns the recorded spectrogram: noise, also in the frames of silence.
fn spectrogram(rules: &AudioRules, n_samples: usize) -> Vec<f32> {
    let n = rules.n_mel * rules.spectrogram_frames(n_samples);
    (0..n)
        .map(|i| (splitmix64(i as u64) >> 56) as f32 / 64.0 - 2.0)
        .collect()
}

#[test]
fn headers_follow_from_declarations() {
    for family in FAMILIES {
        for (draft, suffix) in family.drafts().iter().zip([".header.gguf", "-text.header.gguf"]) {
            let (path, bytes) = (family.path(suffix), draft.header_bytes().unwrap());
            if std::env::var_os("LLAMA_UPDATE").is_some() {
                std::fs::write(&path, &bytes).unwrap();
            }
            let found = std::fs::read(&path).unwrap();
            assert!(found == bytes, "{}: run with LLAMA_UPDATE=1", path.display());
        }
    }
}

#[test]
fn rows_and_logits_match_transformers() {
    for family in FAMILIES {
        for (n_ubatch, pieces) in [(512, false), (512, true), (7, false)] {
            let mut params = exact();
            params.context.n_ubatch = n_ubatch;
            let errors = family.errors(&params, pieces);
            println!(
                "{} in ubatches of {n_ubatch}: rows {:.1e}, logits {:.1e}",
                family.encoder, errors[0], errors[1]
            );
            assert!(family.is_close(errors), "{}: {errors:?}", family.encoder);
        }
    }
}

#[test]
fn reference_device_matches_transformers() {
    for family in FAMILIES {
        let mut params = exact();
        place_on(&mut params.load, "reference", usize::MAX);
        let errors = family.errors(&params, false);
        assert!(family.is_close(errors), "{}: {errors:?}", family.encoder);
    }
}

#[test]
fn gpu_matches_transformers() {
    with_device("audio_encoders::gpu_matches_transformers", || {
        for family in FAMILIES {
            let mut params = exact();
            place_on(&mut params.load, &card(), usize::MAX);
            let errors = family.errors(&params, false);
            println!("{}: rows {:.1e}, logits {:.1e}", family.encoder, errors[0], errors[1]);
            assert!(errors.iter().all(|&e| e <= 1e-8), "{}: {errors:?}", family.encoder);
        }
    });
}

/// Returns the number of rows as published processors count placeholders.
fn published_rows(encoder: &str, n_samples: usize) -> usize {
    let chunk = 80;
    let n_frames = n_samples.div_ceil(HOP);
    match encoder {
        "qwen2a" | "musicflamingo" => {
            let whole = n_frames / chunk;
            let of = |n: usize| n.div_ceil(2) / 2;
            whole * of(chunk) + of(n_frames % chunk)
        }
        "qwen2.5o" => n_samples.max(1).div_ceil(HOP).div_ceil(2) / 2,
        "gemma4a" => {
            let n_frames = (n_samples.max(HOP + 1) - 1) / HOP;
            let of = |n: usize| n.div_ceil(2).div_ceil(2);
            n_frames / chunk * of(chunk) + of(n_frames % chunk)
        }
        "qwen3a" => {
            let n_frames = n_samples.max(2 * HOP) / HOP;
            n_frames / 100 * 13 + (n_frames % 100).div_ceil(8)
        }
        "glma" => {
            // The learned rows are around each chunk, also around one without other rows.
            let n_frames = n_frames.max(1);
            let rest = n_frames % chunk;
            n_frames / chunk * (chunk / 2 / 4 + 2) + if rest > 0 { rest.div_ceil(2) / 4 + 2 } else { 0 }
        }
        "lfm2a" | "parakeet" => {
            let n_frames = n_samples.max(2 * HOP) / HOP;
            n_frames / 160 * 20 + (n_frames % 160).div_ceil(8)
        }
        "gemma4ua" => n_samples.max(1).div_ceil(640),
        "dots3note_a" => n_samples.max(1).div_ceil(8 * HOP),
        "granite_speech" => (n_samples.max(HOP) / HOP).div_ceil(2).div_ceil(6) * 3,
        "voxtral" | "meralion" => n_frames.max(1).div_ceil(chunk) * (chunk / 2 / 4),
        _ => {
            let n_frames = n_frames.max(2);
            let of = |n: usize| n.div_ceil(2 * 4);
            n_frames / chunk * of(chunk) + of(n_frames % chunk)
        }
    }
}

#[test]
fn rows_of_random_lengths_equal_counts_of_header_and_processors() {
    for family in FAMILIES {
        let mut encoder = family.encoder(&exact());
        let rules = encoder.rules();
        for i in 0..1000u64 {
            let longest = if family.encoder == "qwen3a" { 200_000 } else { 40_000 };
            let n_samples = (splitmix64(i) % longest) as usize;
            let expected = published_rows(family.encoder, n_samples);
            assert_eq!(encoder.n_rows(n_samples), expected, "{}: {n_samples}", family.encoder);
            if i % 25 == 0 && expected > 0 {
                let rows = encoder.encode(n_samples, &spectrogram(&rules, n_samples)).unwrap();
                assert_eq!(rows.len(), expected, "{}: {n_samples}", family.encoder);
            }
        }
    }
}

/// The last chunk of GLM-ASR may have fewer positions than a row combines. Its rows are the two learned rows.
#[test]
fn chunk_without_rows_has_learned_rows() {
    let family = FAMILIES.iter().find(|family| family.encoder == "glma").unwrap();
    let mut encoder = family.encoder(&exact());
    let rules = encoder.rules();
    let n_first = encoder.n_rows(80 * HOP);
    for n_frames in [1, 6] {
        let n_samples = (80 + n_frames) * HOP;
        let rows = encoder.encode(n_samples, &spectrogram(&rules, n_samples)).unwrap();
        assert_eq!(rows.len(), n_first + 2);
        assert_eq!(rows.row(n_first), rows.row(0));
        assert_eq!(rows.row(n_first + 1), rows.row(n_first - 1));
        assert_ne!(rows.row(0), rows.row(n_first - 1));
    }
    let short = encoder.encode(1, &spectrogram(&rules, 1)).unwrap();
    assert_eq!(short.len(), 2);
}

#[test]
fn encoder_describes_audio_before_it_is_computed() {
    let expected = [Silence::Masked, Silence::Filled, Silence::Bare];
    for (family, silence) in FAMILIES.iter().zip(expected) {
        let encoder = family.encoder(&exact());
        let found = encoder.rules();
        let rules = AudioRules {
            rate: 16_000,
            mel: Spectrogram::Whisper,
            n_mel: 16,
            window: 5,
            step: 2,
            piece: 0,
            silence,
            chunk: 40,
        };
        assert_eq!(found, rules, "{}", family.encoder);
        let planned = family.drafts()[0].plan(archs::ENCODERS).unwrap();
        let of_chunk = encoder.n_rows(rules.chunk_samples());
        assert_eq!(planned.result_shape, [encoder.width(), of_chunk], "{}", family.encoder);
        assert_eq!(planned.audio, Some(rules));
    }
}

#[test]
fn audio_encode_rejects_wrong_and_short_spectrograms() {
    let mut encoder = FAMILIES[0].encoder(&exact());
    let rules = encoder.rules();
    let error = encoder.encode(1000, &[0.0; 9]).err().unwrap();
    assert!(
        matches!(
            error,
            AudioError::Spectrogram {
                expected: 1280,
                found: 9,
                ..
            }
        ),
        "{error}"
    );
    let error = encoder
        .encode(320, &spectrogram(&rules, 320))
        .err()
        .unwrap()
        .to_string();
    assert_eq!(error, "the audio has 320 samples; the encoder needs at least 321");
    assert_eq!(encoder.n_rows(320), 0);
    let a = FAMILIES[0].rows(&mut encoder);
    assert_eq!(a.id(), encoder.id_of(61 * HOP, &spectrogram(&rules, 61 * HOP)));
    assert_ne!(a.id(), encoder.id_of(60 * HOP, &spectrogram(&rules, 60 * HOP)));
}

#[test]
fn damaged_keys_of_audio_are_reported() {
    for (key, value, expected) in [
        (
            "clip.audio.num_mel_bins",
            0,
            "audio has 0 mel filters; expected 1 to 512",
        ),
        ("clip.audio.context_length", 0, "clip.audio.context_length"),
        ("clip.audio.context_length", u32::MAX, "expected 1 to 16384"),
        ("clip.audio.projection_dim", 63, "tensor"),
    ] {
        let [mut draft, _] = FAMILIES[0].drafts();
        draft.metadata.insert(key, value);
        let bytes = draft.seeded(1).unwrap();
        let error = load(&bytes, archs::ENCODERS, &exact()).err().unwrap().to_string();
        assert!(error.contains(expected), "{key} = {value}: {error}");
    }
}
