//! Writes the file of a [`Conversion`].

use std::cell::{Cell, RefCell};
use std::io::{self, Write};

use super::CheckpointError;
use super::data::{DataError, WriteBuffers};
use super::plan::{Conversion, ConvertedTensor};
use crate::gguf::GgufWriter;

/// Writes the file. `progress` is called with the number of bytes written after each tensor and stops the conversion
/// by returning false.
pub fn write(
    conversion: &Conversion,
    out: &mut dyn Write,
    progress: &dyn Fn(usize) -> bool,
) -> Result<(), CheckpointError> {
    let failed: RefCell<Option<CheckpointError>> = RefCell::new(None);
    let (done, buffers) = (Cell::new(0), RefCell::new(WriteBuffers::default()));
    let mut writer = GgufWriter::with_metadata(conversion.metadata.clone());
    for tensor in &conversion.tensors {
        let (failed, done, buffers) = (&failed, &done, &buffers);
        writer.add_tensor_with(&tensor.name, tensor.ty, &tensor.shape, move |out| {
            let stop = |error: CheckpointError| {
                *failed.borrow_mut() = Some(error);
                io::Error::other("stopped")
            };
            match tensor_data(conversion, tensor, &mut buffers.borrow_mut(), out) {
                Ok(()) => {}
                Err(DataError::Io(error)) => return Err(error),
                Err(DataError::BadElement(bad)) => return Err(stop(conversion.bad_element(&bad))),
            }
            tensor.from.iter().for_each(|name| conversion.shards().release(name));
            done.set(done.get() + tensor.bytes());
            if progress(done.get()) {
                Ok(())
            } else {
                Err(stop(CheckpointError::Stopped))
            }
        })?;
    }
    let written = writer.write(out);
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    written?;
    conversion.shards().check_unchanged()
}

fn tensor_data(
    conversion: &Conversion,
    tensor: &ConvertedTensor,
    buffers: &mut WriteBuffers,
    out: &mut dyn Write,
) -> Result<(), DataError> {
    if !tensor.computed().is_empty() {
        let bytes: Vec<u8> = tensor.computed().iter().flat_map(|x| x.to_le_bytes()).collect();
        return out.write_all(&bytes).map_err(DataError::Io);
    }
    conversion.data(tensor).write(buffers, out)
}
