//! Encodings of bytes in vocabularies: one printable character per byte (byte-level BPE), and `<0xXX>`.

/// GPT-2 byte-to-character table: printable Latin-1 bytes map to themselves, all others to consecutive
/// characters from U+0100.
pub(super) const BYTE_CHARS: [char; 256] = byte_chars();

const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

const fn byte_chars() -> [char; 256] {
    let mut chars = ['\0'; 256];
    let (mut byte, mut next) = (0, 0x100_u16);
    while byte < 256 {
        chars[byte] = if is_printable(byte as u8) {
            byte as u8 as char
        } else {
            next += 1;
            // Unreachable: all values below U+0144 are valid characters.
            match char::from_u32(next as u32 - 1) {
                Some(c) => c,
                None => '\0',
            }
        };
        byte += 1;
    }
    chars
}

/// Inverse of [`BYTE_CHARS`], or -1 for characters that represent no byte.
const CHAR_BYTES: [i16; 0x144] = {
    let mut bytes = [-1; 0x144];
    let mut byte = 0;
    while byte < 256 {
        bytes[BYTE_CHARS[byte] as usize] = byte as i16;
        byte += 1;
    }
    bytes
};

/// Returns the byte that a character of a byte-level vocabulary represents.
pub(super) fn char_byte(c: char) -> Option<u8> {
    CHAR_BYTES.get(c as usize).and_then(|&byte| u8::try_from(byte).ok())
}

/// Appends the byte-level encoding of `text`.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        let mut utf8 = [0; 2];
        out.extend_from_slice(BYTE_CHARS[usize::from(byte)].encode_utf8(&mut utf8).as_bytes());
    }
}

/// Appends the decoded bytes of `text`. Characters outside the table are copied unchanged.
pub(super) fn decode(text: &[u8], out: &mut Vec<u8>) {
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match char_byte(c) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        out.extend_from_slice(chunk.invalid());
    }
}

/// Returns the text `<0xXX>` of a byte token.
pub(super) fn hex_token(byte: u8) -> [u8; 6] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    [
        b'<',
        b'0',
        b'x',
        DIGITS[usize::from(byte >> 4)],
        DIGITS[usize::from(byte & 15)],
        b'>',
    ]
}

/// Parses `<0xXX>`.
pub(super) fn hex_byte(text: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = *text else {
        return None;
    };
    let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    Some(digit(high)? << 4 | digit(low)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_chars_are_distinct() {
        for byte in 0..=255 {
            assert_eq!(char_byte(BYTE_CHARS[usize::from(byte)]), Some(byte));
            assert_eq!(hex_byte(&hex_token(byte)), Some(byte));
        }
        assert_eq!(
            [b' ', b'\n', 0x7f, 0xad].map(|b| BYTE_CHARS[usize::from(b)]),
            ['Ġ', 'Ċ', 'ġ', 'Ń']
        );
        assert_eq!(
            (char_byte('Ń'), char_byte('ń'), char_byte(' ')),
            (Some(0xad), None, None)
        );
        assert_eq!(
            (hex_byte(b"<0xfF>"), hex_byte(b"<0xG0>"), hex_byte(b"<0x1>")),
            (Some(255), None, None)
        );
    }

    #[test]
    fn byte_encoding_round_trips() {
        let (mut encoded, mut decoded) = (Vec::new(), Vec::new());
        let all: Vec<u8> = (0..=255).collect();
        encode(&all, &mut encoded);
        decode(&encoded, &mut decoded);
        assert_eq!(decoded, all);
        decoded.clear();
        decode("Ġ<｜a".as_bytes(), &mut decoded);
        decode(b"x\xff", &mut decoded);
        assert_eq!(decoded, [" <｜a".as_bytes(), b"x\xff"].concat());
    }
}
