//! [`MediaEncoder`]: computes the rows of images.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::builder::{ClassColumn, ImageRules, PatchGrid, RowPositions, TileRules};
use crate::gguf::{Array, Value};
use crate::model::Model;

use super::batch::BatchToken;
use super::encoder_graph::EncoderGraph;
use super::image_parts::Pixels;
use super::image_sizes::ImageSizes;
use super::inputs::ImageInput;
use super::media::{MediaRows, RowGrid};
use super::media_error::MediaError;
use super::patches::{ChannelScale, Patch, in_reading_order, patch_columns, patches};
use super::{AxisPosition, ContextParams, DecodeError, SeqSet};

/// Metadata keys with the mean and the deviation of each color channel.
const COLOR_KEYS: [&str; 2] = ["clip.vision.image_mean", "clip.vision.image_std"];

/// Image encoder with its graph and compute buffers.
pub struct MediaEncoder {
    graph: EncoderGraph,
    sizes: ImageSizes,
    colors: [ChannelScale; 3],
    /// Row after each line of an image.
    newline: Vec<f32>,
    /// Last row of an image with lines.
    end: Vec<f32>,
    /// Number of values in a row.
    width: usize,
}

impl MediaEncoder {
    /// Creates an encoder, and reserves memory if all images have one size. Only the parameters for threads,
    /// precision, and profiling apply.
    ///
    /// # Errors
    /// Returns a [`MediaError`] if the model is not an image encoder, or memory is insufficient.
    pub fn new(model: Arc<Model>, params: &ContextParams) -> Result<MediaEncoder, MediaError> {
        let Some(rules) = model.image_rules() else {
            let model = model.path().display().to_string();
            return Err(MediaError::NotAnEncoder { model });
        };
        let colors = colors(&model)?;
        let n = rules.n_columns(rules.max_patches());
        let mut graph = EncoderGraph::new(model, n, params)?;
        // Images of variable size reserve memory when they are encoded, because most are far below the maximum.
        if rules.is_fixed() {
            graph.reserve(n)?;
        }
        let width = graph.model.result_shape()[0];
        let tiles = rules.tiles.as_ref();
        let of_lines = tiles.and_then(TileRules::line_rows);
        let of_list = tiles.and_then(TileRules::list).map(|(_, newline, _)| newline);
        Ok(MediaEncoder {
            newline: file_row(&graph.model, of_lines.and_then(|rows| rows.0).or(of_list), width)?,
            end: file_row(&graph.model, of_lines.map(|rows| rows.1), width)?,
            width,
            sizes: ImageSizes::new(&graph.model, rules),
            graph,
            colors,
        })
    }

    /// Limits the number of rows of an image, which determines the size that images are resized to. `None` keeps a
    /// limit of the declaration.
    ///
    /// # Errors
    /// Returns [`MediaError::Limits`] if all images have one size, or the limits are invalid.
    pub fn limit_rows(&mut self, min: Option<usize>, max: Option<usize>) -> Result<(), MediaError> {
        self.sizes = self.sizes.limited(min, max)?;
        Ok(())
    }

    /// Returns the encoder's weights and declaration.
    pub fn model(&self) -> &Arc<Model> {
        &self.graph.model
    }

    /// Returns the image preprocessing.
    pub fn rules(&self) -> ImageRules {
        self.sizes.rules()
    }

    /// Returns the sizes of images and the numbers of their rows.
    pub fn sizes(&self) -> &ImageSizes {
        &self.sizes
    }

    /// Returns the number of values in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the size of the compute buffers in bytes.
    pub fn n_bytes(&self) -> usize {
        self.graph.n_bytes()
    }

    /// Sets a flag that cancels encoding, which then returns [`DecodeError::Cancelled`].
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.graph.set_cancel(flag);
    }

    /// Returns a digest of an image and of the encoder, the [`MediaRows::id`] of its rows.
    pub fn id_of(&self, width: usize, height: usize, rgb: &[u8]) -> u128 {
        self.graph.id_of(&[width as u64, height as u64], [rgb])
    }

    /// Returns a digest of the parts of an image of a size before resizing, and of the encoder.
    pub fn id_of_parts(&self, parts: &[Pixels<'_>], [width, height]: [usize; 2]) -> u128 {
        let mut sizes: Vec<u64> = parts
            .iter()
            .flat_map(|part| [part.width as u64, part.height as u64])
            .collect();
        if let Some(mosaic) = self.sizes.mosaic(width, height) {
            sizes.extend(mosaic.numbers());
        }
        self.graph.id_of(&sizes, parts.iter().map(|part| part.rgb))
    }

    /// Returns the mean color, which fills borders.
    pub fn mean_color(&self) -> [u8; 3] {
        self.colors.map(|scale| (scale.mean * 255.0) as u8)
    }

    /// Computes the rows of an image that is a single part: 8-bit red, green, and blue values by pixel, in reading
    /// order. The image has the size that [`ImageSizes::target`] returns.
    ///
    /// # Errors
    /// Returns a [`MediaError`] if the size is wrong or a device fails.
    pub fn encode(&mut self, width: usize, height: usize, rgb: &[u8]) -> Result<Arc<MediaRows>, MediaError> {
        let mut rows = self.computed(&[Pixels { width, height, rgb }])?;
        if let Some(lines) = self.sizes.whole_lines()
            && self.rules().target(width, height) == Some([width, height])
        {
            rows = lines.arrange(&rows, self.width(), &self.newline, &self.end);
        }
        let id = self.id_of(width, height, rgb);
        Ok(Arc::new(self.with_positions(
            MediaRows::new(id, self.width(), rows),
            [width, height],
        )))
    }

    /// Computes the rows of the parts of an image of a size before resizing; see [`ImageSizes::parts`].
    ///
    /// # Errors
    /// Returns a [`MediaError`] if a size is wrong or a device fails.
    pub fn encode_parts(&mut self, parts: &[Pixels<'_>], image: [usize; 2]) -> Result<Arc<MediaRows>, MediaError> {
        let texts = self.sizes.texts(image[0], image[1])?;
        let mut rows = self.computed(parts)?;
        if let Some(mosaic) = self.sizes.mosaic(image[0], image[1]) {
            rows = mosaic.arrange(&rows, self.width(), &self.newline);
        }
        if let Some(lines) = self.sizes.lines(image[0], image[1]) {
            rows = lines.arrange(&rows, self.width(), &self.newline, &self.end);
        }
        let rows = MediaRows::new(self.id_of_parts(parts, image), self.width(), rows).with_texts(texts);
        let last = parts.last().map_or([0; 2], |part| [part.width, part.height]);
        Ok(Arc::new(self.with_positions(rows, last)))
    }

    /// Adds positions along axes to the rows of an unsplit image, if the encoder defines these positions.
    fn with_positions(&self, rows: MediaRows, [width, height]: [usize; 2]) -> MediaRows {
        let rules = self.rules();
        let Ok(grid) = self.sizes.grid(width, height) else {
            return rows;
        };
        let [columns, lines] = [grid.columns, grid.rows].map(|n| (n / rules.block) as u32);
        match rules.positions {
            RowPositions::Sequence => rows,
            RowPositions::Axes => rows.with_grid(RowGrid::Whole([columns, lines])),
            // A learned row follows each line.
            RowPositions::Xd => rows.with_grid(RowGrid::Enclosed([columns.saturating_add(1), lines])),
        }
    }

    /// Computes the rows of each part, in order.
    fn computed(&mut self, parts: &[Pixels<'_>]) -> Result<Vec<f32>, MediaError> {
        let mut all = Vec::new();
        for &Pixels { width, height, rgb } in parts {
            let grid = self.sizes.grid(width, height)?;
            let n_values = 3 * width * height;
            if rgb.len() != n_values {
                return Err(MediaError::Pixels {
                    width,
                    height,
                    expected: n_values,
                    found: rgb.len(),
                });
            }
            let rows = self.compute(grid, rgb)?;
            all.extend(in_reading_order(&self.rules(), grid, self.width(), rows));
        }
        Ok(all)
    }

    fn compute(&mut self, grid: PatchGrid, rgb: &[u8]) -> Result<Vec<f32>, DecodeError> {
        let patches = patches(&self.rules(), grid);
        let colors = patch_columns(self.rules().patch, grid, &patches, &self.colors, rgb);
        // The row and the column of a class token are 0, and the positions of patches start after it.
        let class = (self.rules().class != ClassColumn::None).then(Patch::default);
        let first = usize::from(class.is_some());
        let behind = |patch: &Patch| Patch {
            column: patch.column + first,
            row: patch.row + first,
            pos: patch.pos + first,
        };
        let columns = class.into_iter().chain(patches.iter().map(behind));
        let tokens: Vec<BatchToken> = columns.map(|patch| token(&patch)).collect();
        let (of_class, from) = match self.rules().class {
            ClassColumn::Last => (patches.len() as i32, 0),
            _ => (0, first),
        };
        let place = |patch: &Patch| (from + patch.row * grid.columns + patch.column) as i32;
        let places = class.map(|_| of_class).into_iter().chain(patches.iter().map(place));
        let places: Vec<i32> = places.collect();
        let image = ImageInput {
            patches: &colors,
            places: &places,
            grid,
        };
        let mut rows = vec![0.0; self.width * self.sizes.rows_of(grid)];
        self.graph.compute(&tokens, tokens.len(), image, &[], &mut rows)?;
        Ok(rows)
    }
}

/// Reads a tensor with a row, if it exists. The row is repeated for each feature of the `width` values of a row.
fn file_row(model: &Model, name: Option<&str>, width: usize) -> Result<Vec<f32>, MediaError> {
    let Some(index) = name.and_then(|name| model.tensors().iter().position(|row| row.name == name)) else {
        return Ok(Vec::new());
    };
    let data = model.tensor_data(index).map_err(DecodeError::from)?;
    let (values, _) = data.as_chunks::<4>();
    let values = values.iter().map(|value| f32::from_le_bytes(*value));
    Ok(values.cycle().take(width).collect())
}

/// Returns a patch as a token of the encoder.
fn token(patch: &Patch) -> BatchToken {
    BatchToken {
        token: 0,
        pos: patch.pos as i32,
        seqs: SeqSet::one(0),
        output: true,
        n_best: 0,
        media: None,
        axes: AxisPosition {
            // If the column is rotated before the row, the row is read from the last axis.
            at: [patch.row as i32, patch.column as i32, patch.row as i32, 0],
            lag: 0,
        },
    }
}

/// Reads the mean and the deviation of each color channel.
fn colors(model: &Model) -> Result<[ChannelScale; 3], MediaError> {
    let read = |key: &'static str, nonzero: bool| {
        let value = model.metadata().get(key);
        let values = value.and_then(Value::as_array).and_then(|array| match array {
            Array::F32(values) => <[f32; 3]>::try_from(values.as_slice()).ok(),
            _ => None,
        });
        let is_valid = |x: &f32| x.is_finite() && !x.is_subnormal() && !(nonzero && *x == 0.0);
        values
            .filter(|values| values.iter().all(is_valid))
            .ok_or_else(|| MediaError::Color {
                model: model.path().display().to_string(),
                key,
                nonzero,
                found: value.map_or_else(|| "no such key".to_owned(), Value::describe),
            })
    };
    let (means, deviations) = (read(COLOR_KEYS[0], false)?, read(COLOR_KEYS[1], true)?);
    Ok(std::array::from_fn(|c| ChannelScale {
        mean: means[c],
        deviation: deviations[c],
    }))
}
