//! Uploads through a ring of staging buffers, like a device with DMA, but with each copy delayed as long as
//! possible.

use std::ops::Range;

use crate::backend::{BackendError, Buffer, Stored, Upload};

/// Size of a slot in bytes. Large enough to amortize the latency of a transfer.
const SLOT: usize = 4 << 20;
/// Number of slots: one being filled, one being transferred, and one in between.
const N_SLOTS: usize = 3;

/// Staging buffer for one copy.
#[derive(Default)]
struct Slot {
    data: Vec<u8>,
    /// Destination offset; `None` if the slot is empty.
    to: Option<usize>,
}

/// An upload in which the host fills one slot while the device transfers another. Reading a file and
/// transferring overlap, with bounded extra memory.
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

    /// Transfers the data of the oldest slot.
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
    fn data_of_any_length_is_uploaded_completely() {
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
    fn data_past_buffer_end_is_rejected() {
        for offset in [90, usize::MAX - 3] {
            let device = ReferenceDevice::with_memory(1 << 20);
            let buffer = device.buffer_type().allocate(100).unwrap();
            let mut upload = Box::new(LateUpload::with_slots(buffer, 2, 8));
            upload.write(offset, &[1; 12]).unwrap();
            assert!(matches!(upload.finish().err(), Some(BackendError::OutOfBounds { .. })));
        }
    }
}
