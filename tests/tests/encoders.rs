//! Image encoders against transformers: the rows of an image, and the logits of a language model with the rows between
//! tokens. `tests/tools/record_media.py` made the recordings.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use engine::builder::{ImageSize, RowPositions};
use engine::conformance::{CheckParams, Draft};
use engine::context::{
    Batch, Context, ContextError, ContextParams, DecodeError, MEDIA_TOKENS, MediaEncoder, MediaError, MediaRows, SeqSet,
};
use engine::gguf::logits::Logits;
use engine::gguf::{Gguf, GgufFile, Value, seeded};
use engine::graph::{Graph, RopeKind, TensorId};
use engine::model::{Model, ModelError, Registered, plan};
use engine::random::splitmix64;
use engine::sched::Observer;
use tests::emulator::with_device;
use tests::{data_dir, exact, nmse, place_on};

use crate::cuda::card;
use crate::encoder_families::{FAMILIES, Family};

/// Placeholder token of a row in the recordings.
pub(crate) const PLACEHOLDER: i32 = 127;

impl Family {
    pub(crate) fn path(&self, suffix: &str) -> PathBuf {
        data_dir().join(format!("encoders/{}{suffix}", self.name))
    }

    /// Returns the drafts of the encoder and of the language model.
    fn drafts(&self) -> [Draft; 2] {
        let arch = archs::find_encoder(self.encoder).unwrap().arch;
        let sizes = [arch.test, self.encoder_sizes].concat();
        let mut encoder = Draft::of_sizes(arch, archs::ENCODERS, &sizes, |_| true).unwrap();
        encoder.add_biases(arch, archs::ENCODERS, |t| !self.without_bias.contains(&t.gguf));
        self.insert_lists(&mut encoder);
        // Lists determine the experts of a layer.
        encoder.settle(archs::ENCODERS).unwrap();
        if self.has_bounds {
            let of_layers =
                |name: &&String| name.starts_with("v.blk.") && !name.contains("norm") && !name.contains(".ln");
            let names: Vec<String> = (encoder.tensors.iter().map(|(name, _)| name).filter(of_layers))
                .map(|name| name.trim_end_matches("weight").to_owned())
                .collect();
            for suffix in ["input_min", "input_max", "output_min", "output_max"] {
                let bounds = names.iter().map(|name| (format!("{name}{suffix}"), vec![1]));
                encoder.tensors.extend(bounds);
            }
        }
        let arch = archs::find(self.text).unwrap().arch;
        let mut text = Draft::of_sizes(arch, archs::ALL, self.sizes, |t| self.text_optional.contains(&t.gguf)).unwrap();
        text.add_biases(arch, archs::ALL, |t| self.text_biases.contains(&t.gguf));
        // Layers that share keys ignore this tensor.
        text.tensors
            .retain(|(name, ne)| !name.ends_with("attn_v.weight") || *ne != [1]);
        if self.text == "glm4" {
            text.metadata
                .insert("glm4.rope.dimension_sections", vec![1i32, 2, 1, 0]);
            text.metadata.insert("glm4.rope.dimension_count", 8u32);
        }
        if self.text == "gemma3n" {
            // The graph magnifies rounding errors.
            text.metadata.insert(seeded::KEY_SCALE, 0.5f32);
        }
        self.insert_lists(&mut text);
        if arch.rope == Some(RopeKind::Imrope) {
            // As in Qwen3-VL, the last pair is beyond the section of its axis.
            let key = format!("{}.rope.dimension_sections", self.text);
            text.metadata.insert(key, vec![4i32, 2, 2, 0]);
            // The published delta net hardcodes this epsilon.
            let key = format!("{}.attention.layer_norm_rms_epsilon", self.text);
            text.metadata.insert(key, 1e-6f32);
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

    pub(crate) fn encoder(&self, params: &CheckParams) -> MediaEncoder {
        let model = load(&self.files()[0], archs::ENCODERS, params).unwrap();
        MediaEncoder::new(model, &params.context).unwrap()
    }

    /// Returns the rows of the recorded image.
    pub(crate) fn encoded(&self, params: &CheckParams) -> Arc<MediaRows> {
        let [width, height] = self.image;
        self.encoder(params).encode(width, height, &pixels(self.image)).unwrap()
    }

    pub(crate) fn text(&self, params: &CheckParams) -> Arc<Model> {
        load(&self.files()[1], archs::ALL, params).unwrap()
    }

    fn recorded(&self, suffix: &str) -> Logits {
        Logits::read(self.path(suffix)).unwrap()
    }

    /// Returns the NMSE of the rows, and of the logits with these rows in their context.
    fn errors(&self, params: &CheckParams, pieces: bool) -> [f64; 2] {
        let rows = self.encoded(params);
        let recorded = self.recorded(".logits");
        let mut ctx = context(self.text(params), params, &rows);
        let logits = logits(&mut ctx, recorded.tokens(), std::slice::from_ref(&rows), pieces);
        [self.recorded(".rows").nmse(rows.rows()), recorded.nmse(&logits)]
    }
}

/// Changes seeded weights to realistic values: divisors of frequencies are at least 1, and clamping ranges contain 0.
pub(crate) fn plausible(mut bytes: Vec<u8>) -> Vec<u8> {
    let file = Gguf::parse_header(&bytes).unwrap();
    for t in file.tensors() {
        let change: fn(f32) -> f32 = match &t.name[..] {
            name if name.starts_with("rope_freqs") => |v| 1.0 + 8.0 * v.abs(),
            name if name.ends_with("_min") => |v| -0.5 - v.abs(),
            name if name.ends_with("_max") => |v| 0.5 + v.abs(),
            _ => continue,
        };
        let at = file.data_offset() + t.offset;
        for v in bytes[at..at + t.bytes].as_chunks_mut().0 {
            *v = change(f32::from_le_bytes(*v)).to_le_bytes();
        }
    }
    bytes
}

#[allow(clippy::result_large_err, reason = "a test")]
pub(crate) fn load(bytes: &[u8], archs: &[Registered], params: &CheckParams) -> Result<Arc<Model>, ModelError> {
    let file = GgufFile::from_bytes("seeded.gguf", bytes)?;
    Model::from_file(file, archs, &params.load).map(Arc::new)
}

/// Returns the recorded image: noise.
pub(crate) fn pixels([width, height]: [usize; 2]) -> Vec<u8> {
    (0..3 * width * height)
        .map(|i| (splitmix64(i as u64) >> 56) as u8)
        .collect()
}

pub(crate) fn context(model: Arc<Model>, params: &CheckParams, rows: &MediaRows) -> Context {
    let params = ContextParams {
        n_ctx: 128,
        n_outputs_max: 128,
        media_rows: rows.len(),
        ..params.context.clone()
    };
    Context::new(model, &params).unwrap()
}

/// Returns the logits of all tokens. Placeholders are replaced by the rows of `media`, in order. Text and media are
/// decoded together, or in a batch each.
pub(crate) fn logits(ctx: &mut Context, tokens: &[i32], media: &[Arc<MediaRows>], pieces: bool) -> Vec<f32> {
    let (mut batch, mut pos, mut all) = (Batch::new(), 0, Vec::new());
    let mut decode = |ctx: &mut Context, batch: &mut Batch| {
        ctx.decode(batch).unwrap();
        (0..batch.len()).for_each(|i| all.extend_from_slice(ctx.logits(i).unwrap()));
        batch.clear();
    };
    let mut media = media.iter().enumerate();
    while let Some(&token) = tokens.get(pos) {
        if token == PLACEHOLDER {
            let (number, rows) = media.next().unwrap();
            batch.push_numbered_media(rows, number, 0..rows.len(), pos, SeqSet::one(0));
            pos += rows.len();
        } else {
            batch.push(token as u32, pos, SeqSet::one(0), true);
            pos += 1;
        }
        let next = tokens.get(pos);
        let is_last_of_piece = next.is_none_or(|next| (*next == PLACEHOLDER) != (token == PLACEHOLDER));
        if (pieces && is_last_of_piece) || next.is_none() {
            batch.request_all();
            decode(ctx, &mut batch);
        }
    }
    assert!(pos == tokens.len() && media.next().is_none());
    all
}

#[test]
fn headers_follow_from_declarations() {
    for family in FAMILIES {
        for (draft, suffix) in family.drafts().iter().zip([".header.gguf", "-text.header.gguf"]) {
            let (path, bytes) = (family.path(suffix), draft.header_bytes().unwrap());
            if std::env::var_os("LLAMA_UPDATE").is_some() {
                std::fs::write(&path, &bytes).unwrap();
            }
            assert!(
                std::fs::read(&path).unwrap() == bytes,
                "{}: run with LLAMA_UPDATE=1",
                path.display()
            );
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
                family.name, errors[0], errors[1]
            );
            assert!(errors.iter().all(|&e| e <= 1e-10), "{}: {errors:?}", family.name);
        }
    }
}

#[test]
fn reference_device_matches_transformers() {
    for family in FAMILIES {
        let mut params = exact();
        place_on(&mut params.load, "reference", usize::MAX);
        let errors = family.errors(&params, false);
        assert!(errors.iter().all(|&e| e <= 1e-10), "{}: {errors:?}", family.name);
    }
}

#[test]
fn gpu_matches_transformers() {
    with_device("encoders::gpu_matches_transformers", || {
        for family in FAMILIES {
            let mut params = exact();
            place_on(&mut params.load, &card(), usize::MAX);
            let errors = family.errors(&params, false);
            println!("{}: rows {:.1e}, logits {:.1e}", family.name, errors[0], errors[1]);
            assert!(errors.iter().all(|&e| e <= 1e-8), "{}: {errors:?}", family.name);
        }
    });
}

/// A medium with a single row attends only to earlier rows, as with a causal mask.
#[test]
fn causal_rows_of_gemma_do_not_match() {
    let (family, params) = (&FAMILIES[0], exact());
    let rows = family.encoded(&params);
    let one_by_one = (0..rows.len()).map(|i| {
        let row = rows.row(i).unwrap().to_vec();
        Arc::new(MediaRows::new(i as u128, rows.width(), row))
    });
    let recorded = family.recorded(".logits");
    let mut ctx = context(family.text(&params), &params, &rows);
    let logits = logits(&mut ctx, recorded.tokens(), &one_by_one.collect::<Vec<_>>(), false);
    let error = recorded.nmse(&logits);
    assert!(error > 1e-3, "{error:.2e}");
}

#[test]
fn rows_do_not_change_text_of_other_sequences() {
    let (family, params) = (&FAMILIES[0], exact());
    let rows = family.encoded(&params);
    let (recorded, alone) = (family.recorded(".logits"), [3u32, 1, 4, 1, 5]);
    let two = |params: &CheckParams| {
        let params = ContextParams {
            n_ctx: 128,
            n_outputs_max: 128,
            n_seq_max: 2,
            media_rows: rows.len(),
            ..params.context.clone()
        };
        Context::new(family.text(&exact()), &params).unwrap()
    };
    let (mut ctx, mut batch) = (two(&params), Batch::new());
    batch.push_prompt(&alone, 0, 1);
    ctx.decode(&batch).unwrap();
    let expected = ctx.logits(alone.len() - 1).unwrap().to_vec();
    let (mut ctx, mut batch) = (two(&params), Batch::new());
    batch.push_media(&rows, 0..rows.len(), 0, SeqSet::one(0));
    batch.push_prompt(&alone, 0, 1);
    batch.push(recorded.tokens()[0] as u32, rows.len(), SeqSet::one(0), true);
    ctx.decode(&batch).unwrap();
    let found = ctx.logits(rows.len() + alone.len() - 1).unwrap();
    assert!(nmse(&expected, found) < 1e-12);
    assert!(ctx.logits(batch.len() - 1).is_some());
}

#[test]
fn encoder_describes_image_before_it_is_computed() {
    const N_ROWS: [usize; FAMILIES.len()] = [
        16, 16, 35, 35, 35, 35, 35, 9, 70, 36, 15, 35, 35, 35, 35, 35, 15, 35, 9, 35, 35, 8, 36, 16, 9, 42, 9, 35, 21,
        36, 17, 35, 16, 35, 35, 35, 35, 35, 35, 16,
    ];
    for (family, expected) in FAMILIES.iter().zip(N_ROWS) {
        let width = match family.name {
            "qwen3vl_merger" => 192,
            "resampler" => 256,
            "granite4_vision" => 320,
            _ => 64,
        };
        let expected = (expected, width);
        let encoder = family.encoder(&exact());
        let [width, height] = family.image;
        let sizes = encoder.sizes();
        // Gemma 4 enlarges every image. DeepSeek-OCR splits this one; see `encoder_tiles`.
        if sizes.target(width, height).unwrap() == family.image && !family.name.starts_with("deepseekocr") {
            let n_rows = sizes.n_rows(width, height).unwrap();
            assert_eq!((n_rows, encoder.width()), expected, "{}", family.name);
        }
        let rows = family.encoded(&exact());
        assert_eq!((rows.len(), rows.width()), expected);
        assert!(rows.tokens().iter().all(|&token| token >= MEDIA_TOKENS));
        let planned = family.drafts()[0].plan(archs::ENCODERS).unwrap();
        assert_eq!(planned.result_shape[0], expected.1);
        let (colors, mut other) = (pixels(family.image), pixels(family.image));
        other[5] ^= 1;
        assert_eq!(encoder.id_of(width, height, &colors), rows.id());
        assert_ne!(encoder.id_of(width, height, &other), rows.id());
    }
    for family in &FAMILIES[..2] {
        let mut encoder = family.encoder(&exact());
        let small = encoder.encode(56, 112, &[]).unwrap_err().to_string();
        assert_eq!(small, "the encoder takes images of 112 x 112 pixels, found 56 x 112");
        assert!(matches!(
            encoder.encode(112, 112, &[0; 9]),
            Err(MediaError::Pixels { found: 9, .. })
        ));
    }
}

#[test]
fn unexpected_media_rows_are_rejected() {
    let (family, params) = (&FAMILIES[0], exact());
    let rows = family.encoded(&params);
    let gpt2 = Draft::of_declaration(archs::find("gpt2").unwrap().arch, archs::ALL, false).unwrap();
    let gpt2 = load(&gpt2.seeded(1).unwrap(), archs::ALL, &params).unwrap();
    let with_media = ContextParams {
        media_rows: 16,
        ..params.context.clone()
    };
    let refused = Context::new(gpt2, &with_media).err().unwrap();
    assert!(matches!(refused, ContextError::NoMedia { arch: "gpt2" }), "{refused}");
    let first_error = |media_rows: usize, rows: &Arc<MediaRows>, range| {
        let params = ContextParams {
            n_ctx: 64,
            n_batch: 64,
            n_ubatch: 8,
            media_rows,
            ..exact().context
        };
        let mut ctx = Context::new(family.text(&exact()), &params).unwrap();
        let mut batch = Batch::new();
        batch.push_media(rows, range, 0, SeqSet::one(0));
        batch.push(1, batch.len(), SeqSet::one(0), true);
        ctx.decode(&batch).err()
    };
    assert!(matches!(
        first_error(0, &rows, 0..16),
        Some(DecodeError::NoMedia { index: 0 })
    ));
    let narrow = Arc::new(MediaRows::new(1, 32, vec![0.0; 64]));
    let error = first_error(16, &narrow, 0..2).unwrap().to_string();
    assert_eq!(
        error,
        "the media row at index 0 has 32 values, but the model takes rows of 64"
    );
    assert!(matches!(
        first_error(9, &rows, 0..16),
        Some(DecodeError::MediaTooLong { rows: 16, max: 9, .. })
    ));
    assert!(first_error(16, &rows, 0..16).is_none());
    assert!(
        first_error(16, &rows, 4..12).is_none(),
        "the rest of an image whose start is cached"
    );
    let mut ctx = context(family.text(&params), &params, &rows);
    let mut batch = Batch::new();
    batch.push_media(&rows, 0..16, 0, SeqSet::one(0));
    let cut: Batch = batch.first(10);
    assert!(matches!(ctx.decode(&cut), Err(DecodeError::MediaSplit { index: 9 })));
}

#[test]
fn projectors_are_distinguished_from_models() {
    let (family, params) = (&FAMILIES[0], exact());
    let [encoder, text] = family.files();
    let error = |bytes: &[u8], archs| load(bytes, archs, &params).err().unwrap().to_string();
    assert!(error(&encoder, archs::ALL).contains("is a multimodal projector (mmproj), not a model"));
    assert!(error(&text, archs::ENCODERS).contains("is a model, not a multimodal projector (mmproj)"));
    let [mut draft, _] = family.drafts();
    draft.metadata.insert("clip.projector_type", "none-such");
    let unknown = error(&draft.seeded(1).unwrap(), archs::ENCODERS);
    assert!(
        unknown.contains(
            "unsupported projector type `none-such`; supported: deepseekocr, deepseekocr2, dots3note_a, dots3note_v, dots_ocr"
        ),
        "{unknown}"
    );
}

/// Returns the error of an encoder with a changed key.
fn fault(key: &str, value: impl Into<Value>) -> String {
    let [mut draft, _] = FAMILIES[0].drafts();
    draft.metadata.insert(key, value.into());
    let bytes = draft.seeded(1).unwrap();
    match load(&bytes, archs::ENCODERS, &exact()) {
        Err(error) => error.to_string(),
        Ok(model) => MediaEncoder::new(model, &exact().context).err().unwrap().to_string(),
    }
}

#[test]
fn damaged_keys_are_reported() {
    for (key, value, expected) in [
        ("clip.vision.patch_size", 0, "patches of 0 pixels"),
        ("clip.vision.patch_size", u32::MAX, "not a multiple of patches"),
        ("clip.vision.image_size", 0, "sides of 0 pixels"),
        ("clip.vision.image_size", 100, "side of images (100) is not a multiple"),
        ("clip.vision.image_size", 1 << 30, "expected 1 to 16384"),
        ("clip.vision.projector.scale_factor", 0, "in blocks of 0"),
        (
            "clip.vision.projection_dim",
            63,
            "`mm.input_projection.weight` has shape [64, 64], expected [63, 64]",
        ),
    ] {
        let found = fault(key, value);
        assert!(found.contains(expected), "{key} = {value}: {found}");
    }
    let colors = fault("clip.vision.image_std", vec![0.5f32, 0.0, 0.5]);
    assert!(
        colors.contains("`clip.vision.image_std`: expected three finite numbers other than 0"),
        "{colors}"
    );
    assert!(fault("clip.vision.image_mean", vec![0.5f32, 0.5]).contains("expected three finite numbers"));
}

/// Stops every graph at its last node.
struct Stopper;

impl Observer for Stopper {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        graph.nodes().last() == Some(&node)
    }

    fn show(&mut self, _: &Graph, _: TensorId, _: &[u8]) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

/// After a sequence is cut, restored, or copied, or a decode fails, positions along axes continue after the image.
#[test]
fn axes_of_text_after_image_survive_changes_of_memory() {
    for name in ["qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "hunyuanvl"] {
        let family = Family::named(name);
        let params = exact();
        let (rows, recorded) = (family.encoded(&params), family.recorded(".logits"));
        let (tokens, model) = (recorded.tokens(), family.text(&params));
        let media = std::slice::from_ref(&rows);
        let new = || {
            let params = ContextParams {
                n_ctx: 256,
                n_seq_max: 2,
                n_outputs_max: 96,
                media_rows: rows.len(),
                ..params.context.clone()
            };
            Context::new(model.clone(), &params).unwrap()
        };
        let mut ctx = new();
        let whole = logits(&mut ctx, tokens, media, false);
        let n_vocab = whole.len() / tokens.len();
        let (image_at, n) = (14, tokens.len());
        // Computes the prompt from token `from` to the end, and compares the last logits.
        let check = |ctx: &mut Context, seq: usize, from: usize, what: &str| {
            let mut batch = Batch::new();
            let image_end = image_at + rows.len();
            if from < image_end {
                batch.push_media(&rows, from - image_at..rows.len(), from, SeqSet::one(seq));
            }
            for pos in from.max(image_end)..n {
                batch.push(tokens[pos] as u32, pos, SeqSet::one(seq), pos + 1 == n);
            }
            ctx.decode(&batch).unwrap();
            let error = nmse(&whole[(n - 1) * n_vocab..], ctx.logits(batch.len() - 1).unwrap());
            assert!(error < 1e-12, "{}: {what}: {error:.1e}", family.name);
        };
        for from in [image_at + 1, image_at + 20, n - 8] {
            ctx.seq_rm(0, from..).unwrap();
            let mut saved = Vec::new();
            ctx.save_seq(0, &mut saved).unwrap();
            let mut restored = new();
            restored.load_seq(1, &saved).unwrap();
            check(&mut restored, 1, from, "restored");
            ctx.seq_cp(0, 1, ..).unwrap();
            check(&mut ctx, 1, from, "copied");
            ctx.seq_rm(1, ..).unwrap();
            check(&mut ctx, 0, from, "cut");
        }
        // A failed decode also restores the positions.
        ctx.seq_rm(0, n - 8..).unwrap();
        let mut batch = Batch::new();
        batch.push_media(&rows, 0..rows.len(), n - 8, SeqSet::one(0));
        ctx.set_observer(Some(Box::new(Stopper)));
        ctx.decode(&batch).unwrap_err();
        ctx.set_observer(None);
        check(&mut ctx, 0, n - 8, "after a failed decode");
    }
}

/// Positions that count rows instead of the axes of the image give different logits.
#[test]
fn sequence_positions_of_rows_do_not_match() {
    for name in [
        "qwen2vl_merger",
        "qwen2.5vl_merger",
        "qwen3vl_merger",
        "qwen35",
        "hunyuanvl",
    ] {
        let family = Family::named(name);
        let params = exact();
        let rows = family.encoded(&params);
        let plain = Arc::new(MediaRows::new(rows.id(), rows.width(), rows.rows().to_vec()));
        let recorded = family.recorded(".logits");
        let mut ctx = context(family.text(&params), &params, &rows);
        let error = recorded.nmse(&logits(&mut ctx, recorded.tokens(), &[plain], false));
        assert!(error > 1e-6, "{}: {error:.1e}", family.name);
    }
}

/// Layers find their features by number. Rows whose parts have a different order match if the file lists this order.
#[test]
fn layers_find_features_by_number() {
    let (family, params) = (Family::named("granite4_vision"), exact());
    let with_mapping = |mapping: [f32; 5]| {
        let [_, mut draft] = family.drafts();
        draft.metadata.insert("granite.deepstack_mapping", mapping.to_vec());
        load(&plausible(draft.seeded(1).unwrap()), archs::ALL, &params)
    };
    let (rows, model) = (
        family.encoded(&params),
        with_mapping([-1.0, 3.0, 1.0, 4.0, 2.0]).unwrap(),
    );
    let width = model.base().n_embd();
    let reordered = rows.rows().chunks_exact(5 * width).flat_map(|row| {
        let part = |part: usize| &row[part * width..][..width];
        [0, 2, 4, 1, 3].map(part).concat()
    });
    let reordered = Arc::new(MediaRows::new(rows.id(), rows.width(), reordered.collect()));
    let recorded = family.recorded(".logits");
    let mut ctx = context(model, &params, &reordered);
    let error = recorded.nmse(&logits(&mut ctx, recorded.tokens(), &[reordered], false));
    assert!(error <= 1e-10, "{error:.1e}");
    for mapping in [
        [-1.0, 1.0, 2.0, 3.0, 5.0],
        [-1.0, 0.0, 1.0, 2.0, 3.0],
        [-1.0, 1.5, 2.0, 3.0, 4.0],
        [-0.5, 1.0, 2.0, 3.0, 4.0],
    ] {
        let error = with_mapping(mapping).unwrap_err().to_string();
        assert!(error.contains("deepstack_mapping must contain"), "{error}");
    }
}

/// For each size, the number of rows from the header is the number of computed rows.
#[test]
fn row_counts_of_random_sizes_match() {
    // The rows of `deepseekocr` and `deepseekocr2` include rows of the file; see `encoder_tiles`.
    for family in FAMILIES.iter().filter(|family| !family.name.starts_with("deepseekocr")) {
        let mut encoder = family.encoder(&exact());
        if matches!(family.name, "lfm2" | "gemma4v" | "gemma4uv") {
            encoder.limit_rows(None, Some(12)).unwrap();
        }
        let rules = encoder.rules();
        let mut encoded = std::collections::HashMap::new();
        for i in 0..1000u64 {
            let [width, height] = [0, 1].map(|j| 1 + splitmix64(2 * i + j) as usize % 160);
            let counted = encoder.sizes().n_rows(width, height).unwrap();
            let (mut blocks, mut computed) = (0, 0);
            let unit = match rules.size {
                ImageSize::Area { unit, .. } => unit,
                // Convolutions downsample by four along both axes.
                _ if family.name == "step3vl" => 4 * rules.patch,
                _ => rules.patch * rules.block,
            };
            for part in encoder.sizes().parts(width, height).unwrap() {
                blocks += match family.name {
                    "resampler" => 8,
                    "ldp" | "gemma3nv" => 16,
                    "hunyuanvl" => part.size[1] / unit * (part.size[0] / unit + 1) + 2,
                    _ => part.size[0] / unit * (part.size[1] / unit),
                };
                computed += *encoded.entry(part.size).or_insert_with(|| {
                    let [width, height] = part.size;
                    let rows = encoder.encode(width, height, &pixels(part.size)).unwrap();
                    assert_eq!(rows.grid().is_some(), rules.positions != RowPositions::Sequence);
                    rows.len()
                });
            }
            assert_eq!([counted, computed], [blocks; 2], "{}: {width} x {height}", family.name);
        }
    }
}

/// The texts of LFM2-VL around its tiles, and those of Pixtral between the rows of an image.
#[test]
fn texts_are_between_rows_and_tiles() {
    let of = |name: &str| {
        FAMILIES
            .iter()
            .find(|family| family.name == name)
            .unwrap()
            .encoder(&exact())
    };
    let lfm2 = of("lfm2");
    assert_eq!(lfm2.sizes().texts(80, 56).unwrap(), []);
    let texts = lfm2.sizes().texts(300, 150).unwrap();
    let found: Vec<(usize, &str)> = texts.iter().map(|(row, text)| (*row, text.as_str())).collect();
    let expected = [
        (0, "<|img_row_1_col_1|>"),
        (256, "<|img_row_1_col_2|>"),
        (512, "<|img_thumbnail|>"),
    ];
    assert_eq!(found, expected);
    let parts = lfm2.sizes().parts(300, 150).unwrap();
    assert_eq!((parts.len(), parts[1].at, parts[1].size), (3, [128, 0], [128, 128]));
    assert_eq!(lfm2.sizes().n_rows(300, 150).unwrap(), 512 + 22 * 11);
    let minicpm = of("minicpmv4_6");
    let (whole, split) = (
        minicpm.sizes().texts(90, 60).unwrap(),
        minicpm.sizes().texts(100, 190).unwrap(),
    );
    assert_eq!(whole, [(0, "<image>".to_owned()), (35, "</image>".to_owned())]);
    let shown: Vec<(usize, &str)> = split.iter().map(|(row, text)| (*row, text.as_str())).collect();
    let expected = [
        (0, "<image>"),
        (32, "</image><slice>"),
        (68, "</slice>\n<slice>"),
        (104, "</slice>"),
    ];
    assert_eq!(shown, expected);
    let pixtral = of("pixtral").sizes().texts(112, 80).unwrap();
    assert!(pixtral.iter().all(|(_, text)| text == "[IMG_BREAK]"));
    assert!(pixtral.iter().map(|(row, _)| *row).eq([7, 14, 21, 28]));
}

/// Limits of the rows apply to the count from the header and to the computed rows.
#[test]
fn limits_of_rows_apply_to_images_of_any_size() {
    for family in FAMILIES {
        let mut encoder = family.encoder(&exact());
        let has_minimum = matches!(encoder.rules().size, ImageSize::Multiple { .. });
        let is_limited = encoder.limit_rows(has_minimum.then_some(2), Some(6));
        if encoder.rules().is_fixed() || family.name == "resampler" {
            assert!(is_limited.is_err(), "{}", family.name);
            continue;
        }
        is_limited.unwrap();
        assert_eq!(encoder.sizes().max_rows(), 6);
        for [width, height] in [[500, 400], [20, 90], [300, 2], [1, 1]] {
            let n_rows = encoder.sizes().n_rows(width, height).unwrap();
            let target = encoder.sizes().target(width, height).unwrap();
            let rows = encoder.encode(target[0], target[1], &pixels(target)).unwrap();
            assert_eq!(rows.len(), n_rows, "{}: {width} x {height}", family.name);
            assert!(
                (1 + usize::from(has_minimum)..=6).contains(&n_rows),
                "{}: {n_rows} rows",
                family.name
            );
        }
    }
}

/// Headers with a changed byte load or are rejected, without a panic.
#[test]
fn mutated_headers_load_or_are_rejected() {
    let (mut n_refused, mut n_sound) = (0, 0);
    for family in FAMILIES {
        let bytes = std::fs::read(family.path(".header.gguf")).unwrap();
        for i in 0..400u64 {
            let mut mutated = bytes.clone();
            let at = splitmix64(i) as usize % mutated.len();
            mutated[at] ^= 1 << (splitmix64(!i) % 8);
            let Ok(header) = Gguf::parse_header(&mutated) else {
                n_refused += 1;
                continue;
            };
            match plan(&header, &family.path(".header.gguf"), archs::ENCODERS, &exact().load) {
                Ok(_) => n_sound += 1,
                Err(_) => n_refused += 1,
            }
        }
    }
    assert!(n_refused > 100 && n_sound > 20, "{n_refused} refused, {n_sound} sound");
}
