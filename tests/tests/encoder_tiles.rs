//! Images that are split into tiles, against transformers. `tests/tools/record_media.py` made the recordings.

use std::sync::Arc;

use engine::conformance::{CheckParams, Draft};
use engine::context::{Context, ContextParams, ImagePart, MediaEncoder, MediaRows, Pixels};
use engine::gguf::logits::Logits;
use engine::gguf::{Gguf, seeded};
use engine::random::splitmix64;
use tests::emulator::with_device;
use tests::{data_dir, exact, place_on};

use crate::cuda::card;
use crate::encoder_families::{FAMILIES, Family};
use crate::encoders::{PLACEHOLDER, context, load, logits, pixels};

/// Tokens of the texts around tiles in `idefics3-tiles.logits`, in order, starting with token 1.
const TILE_TOKENS: [&str; 6] = [
    "<fake_token_around_image>",
    "<row_1_col_1>",
    "<row_2_col_1>",
    "<global-img>",
    "\n\n",
    "\n",
];

fn tile_tokens(text: &str) -> Vec<i32> {
    tokens_of(&TILE_TOKENS, text)
}

/// Returns the tokens of a text that consists of `words`, whose tokens are 1, 2, 3, and so on.
fn tokens_of(words: &[&str], mut text: &str) -> Vec<i32> {
    let mut tokens = Vec::new();
    while !text.is_empty() {
        let found = (1..).zip(words).find(|(_, token)| text.starts_with(**token));
        let (id, token) = found.unwrap_or_else(|| panic!("{text}"));
        tokens.push(id);
        text = &text[token.len()..];
    }
    tokens
}

/// Idefics 3 splits an image into a column of two tiles, followed by the whole image.
#[test]
fn tiles_match_transformers() {
    let (family, params) = (&FAMILIES[1], exact());
    let mut header = Gguf::open_header(family.path(".header.gguf")).unwrap();
    header.metadata.insert("clip.vision.preproc_image_size", 224u32);
    let model = load(&seeded::seeded_model(&header, 1).unwrap(), archs::ENCODERS, &params).unwrap();
    let mut encoder = MediaEncoder::new(model, &params.context).unwrap();
    let (parts, texts) = (
        encoder.sizes().parts(90, 200).unwrap(),
        encoder.sizes().texts(90, 200).unwrap(),
    );
    assert_eq!((parts.len(), texts.len()), (3, 3));
    let (mut tokens, mut media) = (Vec::new(), Vec::new());
    for (part, (row, text)) in parts.iter().zip(&texts) {
        let [width, height] = part.size;
        let [left, top] = part.at.map(isize::cast_unsigned);
        let at = 3 * (top * part.resized[0] + left);
        // The tiles are as wide as the image.
        let colors = &pixels(part.resized)[at..at + 3 * width * height];
        let rows = encoder.encode(width, height, colors).unwrap();
        assert_eq!(*row, tokens.iter().filter(|&&token| token == PLACEHOLDER).count());
        tokens.extend(tile_tokens(text));
        tokens.extend(std::iter::repeat_n(PLACEHOLDER, rows.len()));
        media.push(rows);
    }
    tokens.extend(tile_tokens("<fake_token_around_image>"));
    let recorded = Logits::read(data_dir().join("encoders/idefics3-tiles.logits")).unwrap();
    assert_eq!(recorded.tokens()[14..recorded.tokens().len() - 10], tokens);
    let rows = Logits::read(data_dir().join("encoders/idefics3-tiles.rows")).unwrap();
    let found: Vec<f32> = media.iter().flat_map(|rows| rows.rows().to_vec()).collect();
    assert!(rows.nmse(&found) <= 1e-10, "{:.1e}", rows.nmse(&found));
    let mut ctx = context(family.text(&params), &params, &media[0]);
    let error = recorded.nmse(&logits(&mut ctx, recorded.tokens(), &media, false));
    assert!(error <= 1e-10, "{error:.1e}");
}

/// Tokens of the texts around tiles in `step3vl-tiles.logits`, in order, starting with token 1.
const WINDOW_TOKENS: [&str; 5] = [
    "<patch_start>",
    "<patch_end>",
    "<patch_newline>",
    "<im_start>",
    "<im_end>",
];

/// Step3-VL splits an image into two rows of two tiles, which are smaller than the whole image. Images with a longest
/// side of up to 64 pixels are only split if they are not nearly square.
#[test]
fn tiles_of_step3_match_transformers() {
    let (family, params) = (Family::named("step3vl"), exact());
    let mut encoder = family.encoder(&params);
    let image = [100, 90];
    let parts = encoder.sizes().parts(image[0], image[1]).unwrap();
    let sizes: Vec<[usize; 2]> = parts.iter().map(|part| part.size).collect();
    assert_eq!(sizes, [[48, 48], [48, 48], [48, 48], [48, 48], [64, 64]]);
    let texts = encoder.sizes().texts(image[0], image[1]).unwrap();
    let rows = encoded(&mut encoder, image);
    let (mut tokens, mut n) = (Vec::new(), 0);
    for (row, text) in texts {
        tokens.extend(std::iter::repeat_n(PLACEHOLDER, row - n));
        tokens.extend(tokens_of(&WINDOW_TOKENS, &text));
        n = row;
    }
    let of = |suffix: &str| Logits::read(data_dir().join(format!("encoders/step3vl-tiles{suffix}"))).unwrap();
    let recorded = of(".logits");
    assert_eq!(recorded.tokens()[14..recorded.tokens().len() - 10], tokens);
    let error = of(".rows").nmse(rows.rows());
    println!("rows {error:.1e}");
    assert!(error <= 1e-10, "{error:.1e}");
    let media = parts
        .iter()
        .map(|part| encoder.encode(part.size[0], part.size[1], &colors(part)).unwrap());
    let media: Vec<Arc<MediaRows>> = media.collect();
    let mut ctx = context(family.text(&params), &params, &rows);
    let error = recorded.nmse(&logits(&mut ctx, recorded.tokens(), &media, false));
    println!("logits {error:.1e}");
    assert!(error <= 1e-10, "{error:.1e}");
    let random = (0..60).map(|i| [0, 1].map(|j| 1 + splitmix64(2 * i + j) as usize % 300));
    for [width, height] in [[1, 1], [64, 64], [64, 42], [65, 5], [5, 49]].into_iter().chain(random) {
        let n = encoder.sizes().n_rows(width, height).unwrap();
        assert_eq!(encoded(&mut encoder, [width, height]).len(), n, "{width} x {height}");
        assert!(n <= encoder.sizes().max_rows(), "{width} x {height}");
    }
    assert!(encoder.sizes().parts(32 * 201, 32).is_err());
}

/// Sides of a tile and of the grids of [`llava`] in pixels: alternating heights and widths.
const SIDE: usize = 48;
const GRIDS: [u32; 6] = [48, 96, 96, 48, 96, 96];

/// Returns the encoder of LLaVA with the grids of LLaVA 1.6, and optionally without the row after each line.
fn llava(params: &CheckParams, grids: &[u32], has_newline: bool) -> Result<MediaEncoder, String> {
    with_grids("mlp", params, grids, has_newline)
}

/// Returns an encoder with a list of grids, and optionally without the row after each line.
fn with_grids(name: &str, params: &CheckParams, grids: &[u32], has_newline: bool) -> Result<MediaEncoder, String> {
    let header = Gguf::open_header(Family::named(name).path(".header.gguf")).unwrap();
    let mut draft = Draft::of(&header);
    draft
        .metadata
        .insert("clip.vision.image_grid_pinpoints", grids.to_vec());
    draft
        .tensors
        .retain(|(name, _)| has_newline || !name.ends_with("image_newline"));
    let model = load(&draft.seeded(1).unwrap(), archs::ENCODERS, params).map_err(|error| error.to_string())?;
    MediaEncoder::new(model, &params.context).map_err(|error| error.to_string())
}

/// Returns the colors of a part of an image of noise. Borders are black.
fn colors(part: &ImagePart) -> Vec<u8> {
    let [width, height] = part.resized;
    let whole = pixels(part.resized);
    let mut colors = Vec::new();
    for y in 0..part.size[1] {
        for x in 0..part.size[0] {
            let [x, y] = [part.at[0] + x.cast_signed(), part.at[1] + y.cast_signed()].map(usize::try_from);
            match (x, y) {
                (Ok(x), Ok(y)) if x < width && y < height => {
                    colors.extend(&whole[3 * (y * width + x)..][..3]);
                }
                _ => colors.extend([0; 3]),
            }
        }
    }
    colors
}

/// Returns the rows of an image of noise whose size before resizing is `image`.
fn encoded(encoder: &mut MediaEncoder, image: [usize; 2]) -> Arc<MediaRows> {
    let parts = encoder.sizes().parts(image[0], image[1]).unwrap();
    let colors: Vec<Vec<u8>> = parts.iter().map(colors).collect();
    let pixels = parts.iter().zip(&colors).map(|(part, rgb)| Pixels {
        width: part.size[0],
        height: part.size[1],
        rgb,
    });
    let pixels: Vec<Pixels<'_>> = pixels.collect();
    let rows = encoder.encode_parts(&pixels, image).unwrap();
    assert_eq!(rows.id(), encoder.id_of_parts(&pixels, image));
    rows
}

/// Returns the NMSE of the rows, and of the logits with these rows in their context.
fn errors_of_llava(params: &CheckParams) -> [f64; 2] {
    errors_of_tiles(params, ["mlp", "llava-tiles"], &GRIDS, [90, 50])
}

/// DeepSeek-OCR splits an image into a row of three tiles, which are smaller than the whole image. The rows of the
/// tiles are in reading order, before the rows of the whole image.
#[test]
fn tiles_of_deepseek_match_published_form() {
    check_deepseek("deepseekocr", "deepseek-tiles", [51, 21]);
}

/// The rows of each tile of DeepSeek-OCR 2 follow each other. A tile has fewer queries than the whole image.
#[test]
fn tiles_with_queries_match_published_form() {
    check_deepseek("deepseekocr2", "deepseek2-tiles", [44, 17]);
}

/// Compares the rows of a row of three tiles and of the whole image, and their number. `of_whole` is the number of rows
/// of an image without tiles.
fn check_deepseek(name: &str, recording: &str, [n_rows, of_whole]: [usize; 2]) {
    let (family, params) = (Family::named(name), exact());
    let header = Gguf::open_header(family.path(".header.gguf")).unwrap();
    let model = load(&seeded::seeded_model(&header, 1).unwrap(), archs::ENCODERS, &params).unwrap();
    let mut encoder = MediaEncoder::new(model, &params.context).unwrap();
    let image = [100, 36];
    let sizes: Vec<[usize; 2]> = (encoder.sizes().parts(100, 36).unwrap().iter())
        .map(|part| part.size)
        .collect();
    assert_eq!(sizes, [[48, 48], [48, 48], [48, 48], [64, 64]]);
    let rows = encoded(&mut encoder, image);
    assert_eq!((rows.len(), encoder.sizes().n_rows(100, 36).unwrap()), (n_rows, n_rows));
    let random = (0..60).map(|i| [0, 1].map(|j| 1 + splitmix64(2 * i + j) as usize % 300));
    for [width, height] in [[1, 1], [48, 48], [49, 5], [5, 49], [64, 64]].into_iter().chain(random) {
        let n = encoder.sizes().n_rows(width, height).unwrap();
        assert_eq!(encoded(&mut encoder, [width, height]).len(), n, "{width} x {height}");
        assert!(n <= encoder.sizes().max_rows() && (n == of_whole) == (width.max(height) <= 48));
    }
    let of = |suffix: &str| Logits::read(data_dir().join(format!("encoders/{recording}{suffix}"))).unwrap();
    let error = of(".rows").nmse(rows.rows());
    assert!(error <= 1e-10, "{error:.1e}");
    let recorded = of(".logits");
    let mut ctx = context(family.text(&params), &params, &rows);
    let error = recorded.nmse(&logits(&mut ctx, recorded.tokens(), std::slice::from_ref(&rows), false));
    assert!(error <= 1e-10, "{error:.1e}");
}

/// Returns the NMSE of the rows, and of the logits with these rows in their context. `names` contains the name of the
/// family and the name of the recording.
fn errors_of_tiles(params: &CheckParams, names: [&str; 2], grids: &[u32], image: [usize; 2]) -> [f64; 2] {
    let mut encoder = with_grids(names[0], params, grids, true).unwrap();
    let rows = encoded(&mut encoder, image);
    assert!(rows.texts().is_empty());
    let of = |suffix: &str| Logits::read(data_dir().join(format!("encoders/{}{suffix}", names[1]))).unwrap();
    let recorded = of(".logits");
    let params = CheckParams {
        context: ContextParams {
            n_ctx: 256,
            n_batch: 256,
            n_outputs_max: 256,
            media_rows: rows.len(),
            ..params.context.clone()
        },
        ..params.clone()
    };
    let mut ctx = Context::new(Family::named(names[0]).text(&params), &params.context).unwrap();
    let logits = logits(&mut ctx, recorded.tokens(), std::slice::from_ref(&rows), false);
    [of(".rows").nmse(rows.rows()), recorded.nmse(&logits)]
}

/// LLaVA 1.6 splits an image into two rows of two tiles, after the whole image. Patches of the borders have no rows.
#[test]
fn tiles_of_llava_match_transformers() {
    let errors = errors_of_llava(&exact());
    println!("rows {:.1e}, logits {:.1e}", errors[0], errors[1]);
    assert!(errors.iter().all(|&e| e <= 1e-10), "{errors:?}");
    let mut params = exact();
    place_on(&mut params.load, "reference", usize::MAX);
    let errors = errors_of_llava(&params);
    assert!(errors.iter().all(|&e| e <= 1e-10), "reference device: {errors:?}");
}

#[test]
fn tiles_of_llava_on_gpu_match_transformers() {
    with_device("encoder_tiles::tiles_of_llava_on_gpu_match_transformers", || {
        let mut params = exact();
        place_on(&mut params.load, &card(), usize::MAX);
        let errors = errors_of_llava(&params);
        println!("rows {:.1e}, logits {:.1e}", errors[0], errors[1]);
        assert!(errors.iter().all(|&e| e <= 1e-8), "{errors:?}");
    });
}

/// Granite Vision splits an image into a row of three tiles. The row after each line has the features of all layers.
/// The list in the file has alternating widths and heights.
#[test]
fn tiles_of_granite_match_transformers() {
    let grids = [96, 48, 48, 96, 96, 96, 144, 48];
    let errors = errors_of_tiles(&exact(), ["granite4_vision", "granite-tiles"], &grids, [170, 50]);
    println!("rows {:.1e}, logits {:.1e}", errors[0], errors[1]);
    assert!(errors.iter().all(|&e| e <= 1e-10), "{errors:?}");
}

/// For 1,000 random sizes, the grid, the resized image, and the number of rows match transformers.
#[test]
fn row_counts_of_llava_match_transformers() {
    let mut encoder = llava(&exact(), &GRIDS, true).unwrap();
    let text = std::fs::read_to_string(data_dir().join("encoders/listed.txt")).unwrap();
    let mut n = 0;
    for line in text.lines() {
        let numbers: Vec<usize> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let [width, height, columns, rows, to_width, to_height, n_rows] = numbers[..] else {
            panic!("{line}");
        };
        let tiles = encoder.rules().tiles.unwrap();
        let split = tiles.split([width, height]).unwrap();
        let found = [split.columns, split.rows, split.scaled[0], split.scaled[1]];
        assert_eq!(found, [columns, rows, to_width, to_height], "{line}");
        assert_eq!(encoder.sizes().n_rows(width, height).unwrap(), n_rows, "{line}");
        assert!(n_rows <= encoder.sizes().max_rows(), "{line}");
        if n % 40 == 0 {
            assert_eq!(encoded(&mut encoder, [width, height]).len(), n_rows, "{line}");
        }
        n += 1;
    }
    assert_eq!((n, encoder.sizes().max_rows()), (1000, 36 + 12 * 13));
}

/// Images are not split if the file lists no grids, or lacks the row after each line of patches.
#[test]
fn llava_without_grids_or_newline_encodes_whole_images() {
    for (grids, has_newline) in [(&[][..], true), (&GRIDS, false)] {
        let mut encoder = llava(&exact(), grids, has_newline).unwrap();
        assert!(encoder.rules().tiles.is_none());
        let parts = encoder.sizes().parts(90, 50).unwrap();
        assert_eq!((parts.len(), parts[0].size), (1, [SIDE; 2]));
        assert_eq!(encoded(&mut encoder, [90, 50]).len(), 36);
        assert_eq!(encoder.sizes().n_rows(90, 50).unwrap(), 36);
    }
}

/// Images with equal parts and other borders have other rows.
#[test]
fn id_of_tiles_depends_on_borders() {
    let encoder = llava(&exact(), &GRIDS, true).unwrap();
    let black = vec![0; 3 * SIDE * SIDE];
    let part = Pixels {
        width: SIDE,
        height: SIDE,
        rgb: &black,
    };
    let ids = [[90, 50], [180, 100], [50, 90]].map(|image| encoder.id_of_parts(&[part; 5], image));
    assert!(ids[0] == ids[1] && ids[0] != ids[2]);
}

#[test]
fn damaged_lists_of_grids_are_reported() {
    for (grids, expected) in [
        (
            &[48, 96, 96][..],
            "`clip.vision.image_grid_pinpoints` has 3 sides; expected up to 64 pairs of multiples of 48",
        ),
        (&[48, 100], "has 2 sides; expected up to 64 pairs"),
        (&[0, 48], "expected up to 64 pairs"),
        (&[48; 130], "has 130 sides"),
        (&[48 * 200, 48 * 200], "images are split into 1 to 40000 tiles"),
    ] {
        let error = llava(&exact(), grids, true).err().unwrap();
        assert!(error.contains(expected), "{grids:?}: {error}");
    }
}
