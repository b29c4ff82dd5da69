//! Pixels from an image to the parts that encoders read: tiles, borders, and sizes.

use engine::context::MediaEncoder;
use engine::gguf::{Gguf, GgufFile, seeded};
use engine::model::Model;
use llama::parts::{ENCODERS, image_parts};
use media::image::{Filter, RgbImage, crop, pad, resize};
use tests::{data_dir, exact};

/// Returns the encoder of a recorded family.
fn encoder(name: &str) -> MediaEncoder {
    let header = Gguf::open_header(data_dir().join(format!("encoders/{name}.header.gguf"))).unwrap();
    let bytes = seeded::seeded_model(&header, 1).unwrap();
    let (file, params) = (GgufFile::from_bytes("seeded.gguf", &bytes).unwrap(), exact());
    let model = Model::from_file(file, ENCODERS, &params.load).unwrap();
    MediaEncoder::new(model.into(), &params.context).unwrap()
}

/// Returns the parts of an image.
fn parts(encoder: &MediaEncoder, image: &RgbImage) -> Vec<RgbImage> {
    image_parts(encoder.sizes(), encoder.mean_color(), image).expect("an accepted size")
}

/// Returns an image whose colors differ by place.
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
            let expected = crop(&grid, left, top, side, side);
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
