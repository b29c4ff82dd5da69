//! Output files: a single file, or one per file of the source.

use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use engine::gguf::GgufSet;
use engine::gguf::split::part_path;
use engine::quantize::{PlannedTensor, QuantizeError, QuantizePlan, QuantizedFile};
use sha2::{Digest, Sha256};
use tracing::warn;

use super::args::QuantizeArgs;
use crate::commands::gguf::hexadecimal;
use crate::failure::{Failure, Outcome};
use crate::output::{OutputFile, failed};
use crate::{interrupt, progress};

/// Writes all files, and renames them once all are complete.
pub fn write(
    args: &QuantizeArgs,
    source: &GgufSet,
    plan: &QuantizePlan,
    whole: &QuantizedFile<'_>,
    of_input: &dyn Fn(QuantizeError) -> Failure,
) -> Outcome {
    let files: Vec<(PathBuf, QuantizedFile<'_>)> = if is_split(args, source) {
        let parts = 0..source.shards().len();
        parts
            .map(|part| (path_of(args, source, part), whole.clone().of_part(part)))
            .collect()
    } else {
        vec![(args.output.clone(), whole.clone())]
    };
    for (path, _) in &files {
        check_name(path, source)?;
    }
    let total: usize = plan.tensors.iter().map(PlannedTensor::n_elements).sum();
    let bar = progress::timed("quantizing", total);
    let (mut outputs, mut done) = (Vec::new(), 0);
    for (path, file) in &files {
        outputs.push(write_file(args, source, path, file, of_input, &|n| bar.set(done + n))?);
        done += file.tensors().map(PlannedTensor::n_elements).sum::<usize>();
    }
    outputs.into_iter().try_for_each(|output| output.finish(None))
}

/// Returns the path of the only or first file.
pub fn first_path(args: &QuantizeArgs, source: &GgufSet) -> PathBuf {
    if is_split(args, source) {
        path_of(args, source, 0)
    } else {
        args.output.clone()
    }
}

/// Returns the number of files to write.
pub fn n_parts(args: &QuantizeArgs, source: &GgufSet) -> usize {
    if is_split(args, source) {
        source.shards().len()
    } else {
        1
    }
}

fn is_split(args: &QuantizeArgs, source: &GgufSet) -> bool {
    args.keep_split && source.shards().len() > 1
}

fn path_of(args: &QuantizeArgs, source: &GgufSet, part: usize) -> PathBuf {
    let is_gguf = args.output.extension().is_some_and(|extension| extension == "gguf");
    let prefix = if is_gguf {
        args.output.with_extension("")
    } else {
        args.output.clone()
    };
    // A source has at most 65,535 files.
    part_path(&prefix, part as u16, source.shards().len() as u16)
}

/// Returns an error if the output would replace a file of the source.
fn check_name(path: &Path, source: &GgufSet) -> Outcome {
    let output = path.canonicalize().ok();
    let is_output = |path: &Path| output.is_some() && path.canonicalize().ok() == output;
    if source.shards().iter().any(|shard| is_output(shard.path())) {
        return Err(Failure::new(format_args!(
            "{} is the source; choose another name for the output",
            path.display()
        )));
    }
    Ok(())
}

/// Writes a file under a temporary name.
fn write_file(
    args: &QuantizeArgs,
    source: &GgufSet,
    path: &Path,
    file: &QuantizedFile<'_>,
    of_input: &dyn Fn(QuantizeError) -> Failure,
    show: &dyn Fn(usize),
) -> Outcome<OutputFile> {
    let guard = interrupt::listen();
    let mut n_done = None;
    let mut output = if args.resume {
        let (header, ends) = file.layout().map_err(of_input)?;
        let mut output = OutputFile::resume(path, &key(args, source, &header))?;
        n_done = whole_tensors(output.file(), &header, &ends).map_err(|e| failed(path, &e))?;
        output
    } else {
        OutputFile::create(path)?
    };
    let mut out = BufWriter::with_capacity(1 << 20, output.file());
    let result = file.write(n_done, &mut out, &|done| {
        show(done);
        !guard.is_set()
    });
    if args.resume && matches!(result, Err(QuantizeError::Stopped)) {
        warn!("the incomplete file is kept; the same command continues");
    }
    result.map_err(|error| match error {
        QuantizeError::Gguf(error) => Failure::new(format_args!("{}: {error}", path.display())),
        error => of_input(error),
    })?;
    out.flush().map_err(|e| failed(path, &e))?;
    drop(out);
    Ok(output)
}

/// Returns a digest of the header and of the paths, sizes, and modification times of the inputs.
fn key(args: &QuantizeArgs, source: &GgufSet, header: &[u8]) -> String {
    let mut digest = Sha256::new();
    digest.update(header);
    let inputs = source.shards().iter().map(|shard| shard.path());
    for path in inputs.chain(args.imatrix.as_deref()).chain(args.calibrate.as_deref()) {
        let metadata = path.metadata().ok();
        let time = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
        let time = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        digest.update(format!(
            "{}\0{:?}\0{:?}\0",
            path.display(),
            metadata.map(|m| m.len()),
            time
        ));
    }
    hexadecimal(&digest.finalize()[..8])
}

/// Truncates an incomplete file after its last whole tensor. Returns the number of whole tensors; `None` if the header
/// is incomplete or differs.
fn whole_tensors(file: &mut std::fs::File, header: &[u8], ends: &[u64]) -> std::io::Result<Option<usize>> {
    let len = file.metadata()?.len();
    let mut found = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(header.len() as u64).read_to_end(&mut found)?;
    let n_done = if found == header {
        ends.partition_point(|end| *end <= len).checked_sub(1)
    } else {
        None
    };
    let end = n_done.map_or(0, |n| ends[n]);
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    Ok(n_done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_tensors_are_kept_and_rest_truncated() {
        let header = [7; 10];
        for (len, expected, kept) in [
            (0, None, 0),
            (9, None, 0),
            (10, Some(0), 10),
            (29, Some(1), 20),
            (30, Some(2), 30),
        ] {
            let mut file = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = [&header[..], &[1; 30]].concat();
            file.write_all(&bytes[..len]).unwrap();
            let found = whole_tensors(&mut file, &header, &[10, 20, 30]).unwrap();
            assert_eq!((found, file.metadata().unwrap().len()), (expected, kept));
            assert_eq!(file.stream_position().unwrap(), kept);
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 20]).unwrap();
        assert_eq!(whole_tensors(&mut file, &header, &[10, 20, 30]).unwrap(), None);
    }
}
