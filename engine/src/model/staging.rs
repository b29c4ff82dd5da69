//! Weights on their way to a device that copies by itself: a ring of host buffers of fixed size. While the device fetches one of them, the
//! host fills the next, so that reading the file and the transfer overlap, and memory beside the model stays bounded.

use std::sync::Arc;

use crate::backend::{BackendError, Buffer, UploadQueue};

/// Bytes of a slot: large enough that the start of a transfer does not count.
pub(super) const SLOT: usize = 4 << 20;
/// Slots: one that is filled, one that is fetched, and one between them.
pub(super) const N_SLOTS: usize = 3;

/// The ring of one device.
pub(super) struct Ring {
    queue: Box<dyn UploadQueue>,
    slots: Vec<Arc<dyn Buffer>>,
    next: usize,
}

impl Ring {
    /// A ring of `n_slots` buffers of `size` bytes.
    pub fn new(queue: Box<dyn UploadQueue>, n_slots: usize, size: usize) -> Result<Ring, BackendError> {
        let slots = (0..n_slots).map(|_| queue.staging(size)).collect::<Result<_, _>>()?;
        Ok(Ring { queue, slots, next: 0 })
    }

    /// Sends `data` to a buffer of the device. `go_on` is asked before each piece; false, with nothing more sent, if it says no.
    pub fn write(
        &mut self,
        to: &Arc<dyn Buffer>,
        offset: usize,
        data: &[u8],
        mut go_on: impl FnMut() -> bool,
    ) -> Result<bool, BackendError> {
        let size = self.slots[0].size();
        for (i, piece) in data.chunks(size).enumerate() {
            if !go_on() {
                return Ok(false);
            }
            let slot = &self.slots[self.next];
            // The slot's last content is fetched once no more copies are under way than there are other slots.
            self.queue.wait(self.slots.len() - 1)?;
            slot.write(0, piece)?;
            self.queue.push(slot, piece.len(), (to, offset + i * size))?;
            self.next = (self.next + 1) % self.slots.len();
        }
        Ok(true)
    }

    /// Waits until everything has arrived.
    pub fn finish(mut self) -> Result<(), BackendError> {
        self.queue.wait(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Device, reference::ReferenceDevice};

    /// The reference device fetches as late as it may: a slot that is filled too early would arrive with the wrong bytes.
    #[test]
    fn data_of_any_length_arrives_whole() {
        let device = ReferenceDevice::with_memory(1 << 20);
        let buffer = device.buffer_type().allocate(4096).unwrap();
        for (n_slots, size) in [(1, 7), (2, 64), (3, 64), (4, 5000)] {
            let data: Vec<u8> = (0..4000u32).map(|i| (i * i / 7) as u8).collect();
            let queue = device.upload_queue().unwrap().unwrap();
            let mut ring = Ring::new(queue, n_slots, size).unwrap();
            let mut at = 10;
            for piece in [&data[..1], &data[1..1], &data[1..130], &data[130..]] {
                assert!(ring.write(&buffer, at, piece, || true).unwrap());
                at += piece.len();
            }
            ring.finish().unwrap();
            let mut found = vec![0; data.len()];
            buffer.read(10, &mut found).unwrap();
            assert!(found == data, "{n_slots} slots of {size} bytes");
            buffer.write(0, &[0; 4096]).unwrap();
        }
    }

    #[test]
    fn a_cancelled_upload_sends_nothing_more() {
        let device = ReferenceDevice::with_memory(1 << 20);
        let buffer = device.buffer_type().allocate(100).unwrap();
        let queue = device.upload_queue().unwrap().unwrap();
        let mut ring = Ring::new(queue, 2, 10).unwrap();
        let mut left = 3;
        let mut go_on = || {
            left -= 1;
            left >= 0
        };
        assert!(!ring.write(&buffer, 0, &[1; 100], &mut go_on).unwrap());
        ring.finish().unwrap();
        let mut found = [0; 100];
        buffer.read(0, &mut found).unwrap();
        assert_eq!(found.iter().map(|&b| usize::from(b)).sum::<usize>(), 30);
    }
}
