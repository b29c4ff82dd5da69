//! Images crafted to exhaust memory or time.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};
use tests::images::{IMAGE_SIDE, bitmap};

use crate::common::{Options, Server};
use crate::images::{ENCODED, content, counter};

const CHAT: &str = "/v1/chat/completions";

fn ask(kind: &str, file: &[u8]) -> Json {
    let url = format!("data:{kind};base64,{}", STANDARD.encode(file));
    let content = json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what"}]);
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 4, "ignore_eos": true})
}

/// Returns the header of a PNG file and 10 kB of data.
fn png(width: u32, height: u32) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    file.extend(width.to_be_bytes());
    file.extend(height.to_be_bytes());
    file.extend([8, 2, 0, 0, 0]);
    let checksum = crc32(&file[12..]);
    file.extend(checksum.to_be_bytes());
    file.extend(10_000_u32.to_be_bytes());
    file.extend(b"IDAT");
    file.resize(file.len() + 10_004, 0);
    file
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
    !bytes.iter().fold(u32::MAX, byte)
}

/// Returns a GIF file of `n` frames of one pixel.
fn gif(n: usize) -> Vec<u8> {
    let mut file = b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff".to_vec();
    let frame = b"\x2c\0\0\0\0\x01\0\x01\0\0\x02\x01\x44\0";
    (0..n).for_each(|_| file.extend(frame));
    file.push(b';');
    file
}

#[test]
fn oversized_images_are_rejected_by_header() {
    let server = Server::with(Options::with_images());
    for (width, height, reason) in [
        (60_000, 60_000, "60000 pixels on its longer side; the limit is 16384"),
        (1, 100_000, "100000 pixels on its longer side; the limit is 16384"),
        (16_000, 16_000, "256000000 pixels; the limit is 64000000"),
        (0, 10, "0 x 10 pixels"),
        (200, 200, "damaged"),
    ] {
        let error = server.refused(CHAT, &ask("image/png", &png(width, height)), 400);
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with("messages[0].content: image 1 of the request") && message.contains(reason),
            "{message}"
        );
    }
    assert_eq!(counter(&server, ENCODED), 0);
    server.ask(CHAT, &ask("image/bmp", &bitmap(IMAGE_SIDE, 0)));
}

/// The content determines the format, and only the first frame is decoded.
#[test]
fn animations_and_wrong_types_are_read() {
    let server = Server::with(Options::with_images());
    let one = server.ask(CHAT, &ask("image/gif", &gif(1)));
    let many = server.ask(CHAT, &ask("image/jpeg", &gif(10_000)));
    assert_eq!(content(&one), content(&many));
    let named = server.ask(CHAT, &ask("image/png", &bitmap(IMAGE_SIDE, 0)));
    assert_eq!(
        content(&named),
        content(&server.ask(CHAT, &ask("image/bmp", &bitmap(IMAGE_SIDE, 0))))
    );
}
