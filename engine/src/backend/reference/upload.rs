//! Uploads through a ring of staging memory, as a device that fetches data by itself makes them, each copy as late as it may be.

use std::ops::Range;

use crate::backend::{BackendError, Buffer, Stored, Upload};

/// Bytes of a slot: large enough that the start of a transfer does not count.
const SLOT: usize = 4 << 20;
/// Slots: one that is filled, one that is fetched, and one between them.
const N_SLOTS: usize = 3;

/// Staging memory for one copy.
#[derive(Default)]
struct Slot {
    data: Vec<u8>,
    /// Where the data goes; nothing to fetch if `None`.
    to: Option<usize>,
}

/// While the device fetches one slot, the host fills the next, so that reading a file and the transfer overlap, and memory beside the
/// model stays bounded.
pub(super) struct LateUpload {
    buffer: Box<dyn Buffer>,
    slots: Vec<Slot>,
    slot_size: usize,
    next: usize,
}

impl LateUpload {
    pub(super) fn new(buffer: Box<dyn Buffer>) -> LateUpload {
        LateUpload::with_slots(buffer, N_SLOTS, SLOT)
    }

    fn with_slots(buffer: Box<dyn Buffer>, n_slots: usize, slot_size: usize) -> LateUpload {
        let slots = (0..n_slots).map(|_| Slot::default()).collect();
        LateUpload {
            buffer,
            slots,
            slot_size,
            next: 0,
        }
    }

    /// Fetches what the oldest slot holds.
    fn fetch_oldest(&mut self) -> Result<(), BackendError> {
        let slot = &mut self.slots[self.next];
        match slot.to.take() {
            Some(to) => self.buffer.write(to, &slot.data),
            None => Ok(()),
        }
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), BackendError> {
        for (i, piece) in data.chunks(self.slot_size).enumerate() {
            self.fetch_oldest()?;
            let slot = &mut self.slots[self.next];
            slot.data.clear();
            slot.data.extend_from_slice(piece);
            slot.to = Some(offset.saturating_add(i * self.slot_size));
            self.next = (self.next + 1) % self.slots.len();
        }
        Ok(())
    }
}

impl Upload for LateUpload {
    fn set_tensor(&mut self, tensor: &Stored, rows: Range<usize>, data: &[u8]) -> Result<(), BackendError> {
        let (offset, stored) = tensor.pack(&rows, data)?;
        self.write(offset, &stored)
    }

    fn finish(mut self: Box<Self>) -> Result<Box<dyn Buffer>, BackendError> {
        for _ in 0..self.slots.len() {
            self.fetch_oldest()?;
            self.next = (self.next + 1) % self.slots.len();
        }
        Ok(self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Device, reference::ReferenceDevice};

    #[test]
    fn data_of_any_length_arrives_whole() {
        let device = ReferenceDevice::with_memory(1 << 20);
        for (n_slots, size) in [(1, 7), (2, 64), (3, 64), (4, 5000)] {
            let data: Vec<u8> = (0..4000u32).map(|i| (i * i / 7) as u8).collect();
            let buffer = device.buffer_type().allocate(4096).unwrap();
            let mut upload = Box::new(LateUpload::with_slots(buffer, n_slots, size));
            let mut at = 10;
            for piece in [&data[..1], &data[1..1], &data[1..130], &data[130..]] {
                upload.write(at, piece).unwrap();
                at += piece.len();
            }
            let buffer = upload.finish().unwrap();
            let mut found = vec![0; data.len()];
            buffer.read(10, &mut found).unwrap();
            assert!(found == data, "{n_slots} slots of {size} bytes");
        }
    }

    #[test]
    fn data_beyond_the_buffer_is_an_error() {
        for offset in [90, usize::MAX - 3] {
            let device = ReferenceDevice::with_memory(1 << 20);
            let buffer = device.buffer_type().allocate(100).unwrap();
            let mut upload = Box::new(LateUpload::with_slots(buffer, 2, 8));
            upload.write(offset, &[1; 12]).unwrap();
            assert!(matches!(upload.finish().err(), Some(BackendError::OutOfBounds { .. })));
        }
    }
}
