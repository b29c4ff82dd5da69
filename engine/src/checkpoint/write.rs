//! Writes the file of a [`Conversion`].

use std::cell::{Cell, RefCell};
use std::io::{self, Write};

use kernels::GgmlType;

use super::data::DataError;
use super::plan::{Conversion, ConvertedTensor};
use super::{CheckpointError, plan};
use crate::gguf::GgufWriter;

/// Writes the file. `progress` is called with the number of bytes written after each tensor and stops the conversion
/// by returning false.
pub fn write(
    conversion: &Conversion,
    out: &mut dyn Write,
    progress: &dyn Fn(usize) -> bool,
) -> Result<(), CheckpointError> {
    let failed: RefCell<Option<CheckpointError>> = RefCell::new(None);
    let done = Cell::new(0);
    let mut writer = GgufWriter::with_metadata(conversion.metadata.clone());
    for tensor in &conversion.tensors {
        let (failed, done) = (&failed, &done);
        writer.add_tensor_with(&tensor.name, tensor.ty, &tensor.shape, move |out| {
            let stop = |error: CheckpointError| {
                *failed.borrow_mut() = Some(error);
                io::Error::other("stopped")
            };
            match tensor_data(conversion, tensor, out) {
                Ok(()) => {}
                Err(DataError::Io(error)) => return Err(error),
                Err(DataError::NotFinite {
                    name,
                    value,
                    row,
                    column,
                }) => {
                    let text = format!("has the value {value} at row {row}, column {column}; expected finite numbers");
                    return Err(stop(CheckpointError::tensor(&conversion.path_of(&name), &name, text)));
                }
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

fn tensor_data(conversion: &Conversion, tensor: &ConvertedTensor, out: &mut dyn Write) -> Result<(), DataError> {
    if !tensor.computed().is_empty() {
        let bytes: Vec<u8> = tensor.computed().iter().flat_map(|x| x.to_le_bytes()).collect();
        return Ok(out.write_all(&bytes)?);
    }
    let (data, exponents): (_, plan::Exponents<'_>) = conversion.data(tensor);
    match tensor.ty {
        GgmlType::MXFP4 => data.write_mxfp4(&exponents, out),
        ty => data.write(ty, out),
    }
}
