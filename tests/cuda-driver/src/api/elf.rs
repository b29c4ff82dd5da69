//! Machine code with line numbers: an ELF file whose debug information contains the PTX.

use std::ffi::CStr;
use std::slice;

/// Section with the lines of the PTX, each followed by zeros.
const PTX_SECTION: &[u8] = b".nv_debug_ptx_txt";

/// Size of the file header, and offsets of its fields: section table, size, and number of its entries, and index of the
/// section with names.
const HEADER_BYTES: usize = 64;
const TABLE: usize = 0x28;
const ENTRY_BYTES: usize = 0x3a;
const N_ENTRIES: usize = 0x3c;
const NAMES: usize = 0x3e;

/// Offsets in an entry of the section table: name, offset in the file, and size.
const NAME: usize = 0;
const OFFSET: usize = 0x18;
const SIZE: usize = 0x20;
const MIN_ENTRY_BYTES: usize = 0x40;

fn u16_at(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes([bytes[at], bytes[at + 1]]).into()
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u16_at(bytes, at) | u16_at(bytes, at + 2) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u32_at(bytes, at) | u32_at(bytes, at + 4) << 32
}

/// Returns the PTX in the debug information of machine code.
///
/// # Errors
/// Returns a message if the file is damaged, or was compiled without line numbers.
///
/// # Safety
/// `image` points to a complete ELF file of 64 bits.
pub unsafe fn embedded_ptx(image: *const u8) -> Result<String, String> {
    // SAFETY: an ELF file begins with its header (function contract).
    let header = unsafe { slice::from_raw_parts(image, HEADER_BYTES) };
    let (entry_bytes, n_entries) = (u16_at(header, ENTRY_BYTES), u16_at(header, N_ENTRIES));
    if entry_bytes < MIN_ENTRY_BYTES || u16_at(header, NAMES) >= n_entries {
        return Err("the machine code has no section table".into());
    }
    // SAFETY: the header gives the position and size of the section table, which is part of the file.
    let table = unsafe { slice::from_raw_parts(image.add(u64_at(header, TABLE)), entry_bytes * n_entries) };
    let entries: Vec<&[u8]> = table.chunks(entry_bytes).collect();
    let names = u64_at(entries[u16_at(header, NAMES)], OFFSET);
    let is_ptx = |entry: &&&[u8]| {
        // SAFETY: names are zero-terminated strings within the section of names.
        let name = unsafe { CStr::from_ptr(image.add(names + u32_at(entry, NAME)).cast()) };
        name.to_bytes() == PTX_SECTION
    };
    let entry = entries.iter().find(is_ptx);
    let entry = entry.ok_or("the machine code contains no PTX: it was compiled without --generate-line-info")?;
    // SAFETY: the entry gives the position and size of the section, which is part of the file.
    let text = unsafe { slice::from_raw_parts(image.add(u64_at(entry, OFFSET)), u64_at(entry, SIZE)) };
    let text = std::str::from_utf8(text).map_err(|error| format!("the PTX is not valid UTF-8: {error}"))?;
    // The PTX ends with sections of names for the line numbers.
    let text = text.split("\0.section").next().unwrap_or_default();
    Ok(text.replace('\0', "\n"))
}
