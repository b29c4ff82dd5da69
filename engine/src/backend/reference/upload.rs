//! Uploads that happen as late as they may, so that who reuses staging memory too early is found out.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::backend::{BackendError, Buffer, UploadQueue};

/// A copy that was asked for.
struct Pending {
    from: Arc<dyn Buffer>,
    len: usize,
    to: Arc<dyn Buffer>,
    offset: usize,
}

/// Copies in the order they were asked for, none before it is waited for.
#[derive(Default)]
pub(super) struct LateUploads {
    pending: VecDeque<Pending>,
}

impl UploadQueue for LateUploads {
    fn push(
        &mut self,
        from: &Arc<dyn Buffer>,
        len: usize,
        (to, offset): (&Arc<dyn Buffer>, usize),
    ) -> Result<(), BackendError> {
        self.pending.push_back(Pending {
            from: from.clone(),
            len,
            to: to.clone(),
            offset,
        });
        Ok(())
    }

    fn wait(&mut self, n_left: usize) -> Result<(), BackendError> {
        while self.pending.len() > n_left {
            let Some(Pending { from, len, to, offset }) = self.pending.pop_front() else {
                break;
            };
            let mut bytes = vec![0; len];
            from.read(0, &mut bytes)?;
            to.write(offset, &bytes)?;
        }
        Ok(())
    }
}
