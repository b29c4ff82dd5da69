//! Pixels from an image to the parts that encoders read: tiles, borders, and sizes.

use engine::context::MediaEncoder;
use engine::gguf::{Gguf, GgufFile, seeded};
use engine::model::Model;
use llama::parts::{ENCODERS, image_parts};
use media::image::{Filter, RgbImage, crop, pad, resize};
use tests::{data_dir, exact};

/// Returns the encoder of a recorded family.
fn encoder(name: &str) -> MediaEncoder {
    let mut header = Gguf::open_header(data_dir().join(format!("encoders/{name}.header.gguf"))).unwrap();
    if name == "idefics3" {
        header.metadata.insert("clip.vision.preproc_image_size", 224u32);
    }
    if name == "granite4_vision" {
        // Alternating widths and heights.
        let grids = vec![96u32, 48, 48, 96, 144, 48, 96, 96];
        header.metadata.insert("clip.vision.image_grid_pinpoints", grids);
    }
    let bytes = seeded::seeded_model(&header, 1).unwrap();
    let (file, params) = (GgufFile::from_bytes("seeded.gguf", &bytes).unwrap(), exact());
    let model = Model::from_file(file, ENCODERS, &params.load).unwrap();
    MediaEncoder::new(model.into(), &params.context).unwrap()
}

/// Returns the parts of an image.
fn parts(encoder: &MediaEncoder, image: &RgbImage) -> Vec<RgbImage> {
    image_parts(encoder.sizes(), encoder.mean_color(), image).expect("an accepted size")
}

/// Returns an image whose color depends on the position.
fn gradient(width: u32, height: u32) -> RgbImage {
    let pixel = |i: u32| [i % width * 255 / width, i / width * 255 / height, i * 7 % 256];
    RgbImage {
        width,
        height,
        data: (0..width * height).flat_map(pixel).map(|value| value as u8).collect(),
    }
}

#[test]
fn tiles_of_lfm2_are_cut_in_reading_order_before_overview() {
    let encoder = encoder("lfm2");
    let image = gradient(300, 420);
    let found = parts(&encoder, &image);
    // Tiles have sides of 16 blocks of 2 x 2 patches of 4 pixels.
    let side = 128;
    let sizes: Vec<[u32; 2]> = found.iter().map(|part| [part.width, part.height]).collect();
    let (columns, rows) = (2, 3);
    let grid = resize(&image, side * columns, side * rows, Filter::Bilinear);
    for row in 0..rows {
        for column in 0..columns {
            let [left, top] = [column, row].map(|at| i64::from(at * side));
            let expected = crop(&grid, left, top, side, side, [0; 3]);
            assert_eq!(
                found[(row * columns + column) as usize],
                expected,
                "row {row}, column {column}"
            );
        }
    }
    let [width, height] = sizes[sizes.len() - 1];
    assert_eq!((sizes.len(), [width, height] != [side; 2]), (7, true));
    assert_eq!(found[6], resize(&image, width, height, Filter::Bilinear));
    // An image of up to twice the largest area is not split.
    assert_eq!(parts(&encoder, &gradient(128, 150)).len(), 1);
}

#[test]
fn padded_images_are_centered_between_borders_of_mean_color() {
    let encoder = encoder("mlp");
    let color = encoder.mean_color();
    for (width, height, [left, top, right, bottom]) in [(90, 41, [0, 24, 0, 25]), (40, 77, [18, 0, 19, 0])] {
        let image = gradient(width, height);
        let square = pad(&image, left, top, right, bottom, color);
        assert_eq!(square.width, square.height);
        let expected = resize(&square, 48, 48, Filter::Bicubic);
        let found = parts(&encoder, &image);
        assert_eq!(found, [expected], "{width} x {height}");
        assert_eq!(found[0].data[..3], color);
    }
}

/// Returns the recorded image of a case: noise, as `noise` in `tests/tools/record_pixels.py`.
fn noise(case: u64, width: u32, height: u32) -> RgbImage {
    let byte = |i: u64| {
        let mut hash = (i + case * 1_000_003).wrapping_mul(2_654_435_761) & 0xffff_ffff;
        hash ^= hash >> 15;
        hash = hash.wrapping_mul(2_246_822_519) & 0xffff_ffff;
        (hash >> 13) as u8
    };
    RgbImage {
        width,
        height,
        data: (0..u64::from(width * height * 3)).map(byte).collect(),
    }
}

/// Returns the CRC-32 of zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc))
    })
}

/// The parts of images from 1 x 1 to 8192 x 16 pixels are byte for byte equal to the published preprocessing.
#[test]
fn pixels_of_parts_match_published_preprocessing() {
    let text = std::fs::read_to_string(data_dir().join("media/parts.txt")).unwrap();
    let (mut n, mut failures) = (0, Vec::new());
    for name in [
        "deepseekocr2",
        "gemma3",
        "gemma3nv",
        "glm5v",
        "granite4_vision",
        "idefics3",
        "internvl",
        "janus_pro",
        "ling3vl",
        "mimovl",
        "minicpmv4_6",
        "minimax_m3",
        "mlp",
        "muse-glimmer",
        "phi4",
        "pixtral",
        "qwen2vl_merger",
        "step3vl",
        "youtuvl",
    ] {
        let encoder = encoder(name);
        for line in text.lines().filter(|line| line.split(' ').next() == Some(name)) {
            let numbers: Vec<u32> = line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
            let [case, width, height, n_parts, digest] = numbers[..] else {
                panic!("{line}")
            };
            let found = parts(&encoder, &noise(case.into(), width, height));
            let pixels: Vec<u8> = found.iter().flat_map(|part| part.data.iter().copied()).collect();
            if (found.len() as u32, crc32(&pixels)) != (n_parts, digest) {
                failures.push(format!("{line}: {} parts", found.len()));
            }
            n += 1;
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert_eq!(n, 405);
}
