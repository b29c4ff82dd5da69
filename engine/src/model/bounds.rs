//! Bounds of the inputs and results of a matrix, which files store as tensors of one value.

use crate::builder::WeightLeaf;
use crate::gguf::GgufSet;

use super::table::TableRow;
use super::upload::file_bytes;
use super::{LoadParams, ModelError};

/// Suffixes of the tensors: lower and upper bound of the input and of the result.
pub(super) const SUFFIXES: [&str; 4] = ["input_min", "input_max", "output_min", "output_max"];

/// Reads the values of bounds, which graphs contain as constants.
pub(super) fn read(
    set: &GgufSet,
    rows: &[TableRow],
    leafs: &mut [WeightLeaf],
    params: &LoadParams,
) -> Result<(), ModelError> {
    for (row, leaf) in rows.iter().zip(leafs.iter_mut()) {
        if SUFFIXES.contains(&row.name.rsplit('.').next().unwrap_or_default()) {
            let mut scratch = Vec::new();
            let bytes = file_bytes(set, params, row.shard, row.file_range(set), &mut scratch)?;
            let value = bytes.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes));
            leaf.value = Some(value);
            if value.is_nan() {
                return Err(bad_value(set, row, value));
            }
        }
    }
    // An upper bound follows its lower bound.
    for (i, pair) in leafs.windows(2).enumerate() {
        if let [Some(low), Some(high)] = [pair[0].value, pair[1].value]
            && rows[i].name.ends_with("_min")
            && low > high
        {
            return Err(bad_value(set, &rows[i], low));
        }
    }
    Ok(())
}

fn bad_value(set: &GgufSet, row: &TableRow, value: f32) -> ModelError {
    ModelError::BadValue {
        path: set.shards()[row.shard].path().to_owned(),
        tensor: row.name.clone(),
        index: 0,
        value,
    }
}
