//! Images in prompts: projector files, the rows of images, and their positions among the tokens.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::context::{
    Batch, ContextError, ContextParams, ImageSizes, MEDIA_TOKENS, MediaEncoder, MediaError, MediaRows, Pixels, SeqSet,
};
use engine::model::{LoadParams, MediaUse, Medium, Model, ModelError, Registered, TextPart};
use engine::sample::Token;
use engine::vocab::Vocab;
use media::image::{RgbImage, decode, size};
use media::{Limits, MediaError as DecodeError};

use crate::image_parts::image_parts;
use crate::template::{Prompt, PromptTemplate, Rendered};

/// Placeholder character for an image in the content of a message. Unicode reserves it for internal use.
pub const IMAGE_MARK: char = '\u{fdef}';

/// Name of an image in the text of a prompt.
const SHOWN: &str = "[image]";

/// Texts around a medium without an encoder.
static NO_TEXTS: [String; 2] = [String::new(), String::new()];

/// Maximum size in bytes of the recent rows that a projector caches.
const CACHE_BYTES: usize = 64 << 20;

/// An error that can occur with projectors and images.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The projector file is invalid or does not fit in memory.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The projector cannot be computed.
    #[error(transparent)]
    Encoder(#[from] MediaError),
    /// The language model takes no images.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The projector belongs to another language model.
    #[error(
        "{}: the projector's rows have {found} values, but the language model takes rows of {expected}",
        projector.display()
    )]
    Width {
        /// Path of the projector.
        projector: PathBuf,
        /// Values in a row of the projector.
        found: usize,
        /// Values in a row that the language model takes.
        expected: usize,
    },
    /// The vocabulary of the language model lacks a token around images.
    #[error("{}: the language model has no token {token:?}, which this projector puts around images", projector.display())]
    Token {
        /// Path of the projector.
        projector: PathBuf,
        /// Text of the missing token.
        token: String,
    },
    /// The image cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Sizes of images, and their positions in prompts. Usable while the encoder is busy.
#[derive(Clone, Debug)]
pub struct ImageLayout {
    /// Texts before and after the rows of an image.
    around: [String; 2],
    sizes: ImageSizes,
}

/// Image encoder for a language model.
pub struct Projector {
    encoder: MediaEncoder,
    layout: ImageLayout,
    recent: RecentRows,
}

/// Cache of the rows of recent media, the most recent last.
#[derive(Default)]
pub(crate) struct RecentRows(Vec<Arc<MediaRows>>);

impl RecentRows {
    /// Returns cached rows and marks them as the most recently used.
    pub fn get(&mut self, id: u128) -> Option<Arc<MediaRows>> {
        let at = self.0.iter().position(|rows| rows.id() == id)?;
        let rows = self.0.remove(at);
        self.0.push(rows.clone());
        Some(rows)
    }

    /// Adds rows. Evicts the least recently used rows until the remaining rows fit in [`CACHE_BYTES`].
    pub fn push(&mut self, rows: Arc<MediaRows>) {
        self.0.push(rows);
        let bytes = |rows: &Arc<MediaRows>| size_of_val(rows.rows());
        while self.0.len() > 1 && self.0.iter().map(bytes).sum::<usize>() > CACHE_BYTES {
            self.0.remove(0);
        }
    }
}

impl Projector {
    /// Loads a projector file and checks that it belongs to a language model. The parameters of the language model's
    /// context determine threads and precision.
    ///
    /// # Errors
    /// Returns an [`ImageError`] if the file is invalid or belongs to another model.
    pub fn open(
        path: &Path,
        load: &LoadParams,
        context: &ContextParams,
        language: &Model,
    ) -> Result<Projector, ImageError> {
        let (model, around) = model_and_texts(path, load, language, Some(Medium::Image))?;
        Ok(Projector::new(MediaEncoder::new(model, context)?, around))
    }

    /// Creates a projector from an encoder and the texts around its rows.
    pub(crate) fn new(encoder: MediaEncoder, around: [String; 2]) -> Projector {
        let sizes = *encoder.sizes();
        Projector {
            encoder,
            layout: ImageLayout { around, sizes },
            recent: RecentRows::default(),
        }
    }

    /// Returns the sizes of images and their positions in prompts.
    pub fn layout(&self) -> &ImageLayout {
        &self.layout
    }

    /// Encodes an image file in memory without the cache of recent images.
    ///
    /// # Errors
    /// Returns an [`ImageError`] if the file exceeds a limit or cannot be decoded, or the encoder fails.
    pub fn encode(&mut self, file: &[u8], limits: &Limits) -> Result<Arc<MediaRows>, ImageError> {
        let (parts, size) = decoded(&self.encoder, file, limits)?;
        Ok(self.encoder.encode_parts(&pixels(&parts), size)?)
    }

    /// Sets a flag that cancels encoding.
    pub fn set_cancel(&mut self, flag: Option<Arc<AtomicBool>>) {
        self.encoder.set_cancel(flag);
    }

    /// Limits the number of rows of an image; see [`MediaEncoder::limit_rows`].
    ///
    /// # Errors
    /// Returns [`ImageError::Encoder`] if all images have one size, or the limits are invalid.
    pub fn limit_rows(&mut self, min: Option<usize>, max: Option<usize>) -> Result<(), ImageError> {
        self.encoder.limit_rows(min, max)?;
        self.layout.sizes = *self.encoder.sizes();
        Ok(())
    }

    /// Returns the encoder.
    pub fn encoder(&self) -> &MediaEncoder {
        &self.encoder
    }

    /// Returns the rows of an image file in memory. A recent image is not encoded again.
    ///
    /// # Errors
    /// Returns an [`ImageError`] if the file cannot be decoded, or the encoder fails.
    pub fn rows(&mut self, file: &[u8]) -> Result<Arc<MediaRows>, ImageError> {
        let (parts, size) = decoded(&self.encoder, file, &Limits::default())?;
        let id = self.encoder.id_of_parts(&pixels(&parts), size);
        if let Some(rows) = self.recent.get(id) {
            return Ok(rows);
        }
        let rows = self.encoder.encode_parts(&pixels(&parts), size)?;
        self.recent.push(rows.clone());
        Ok(rows)
    }

    /// Tokenizes a prompt; see [`ImageLayout::tokenized`].
    pub fn tokenized(
        &self,
        vocab: &Vocab,
        template: Option<&PromptTemplate>,
        rendered: Rendered,
        images: &[Arc<MediaRows>],
    ) -> Prompt {
        self.layout.tokenized(vocab, template, rendered, images)
    }
}

impl ImageLayout {
    /// Returns the number of rows of an image file in memory, from its header.
    ///
    /// # Errors
    /// Returns an [`ImageError`] if the file exceeds a limit, its header is invalid, or the encoder takes no images of
    /// this size.
    pub fn n_rows(&self, file: &[u8], limits: &Limits) -> Result<usize, ImageError> {
        let (width, height) = size(file, limits)?;
        Ok(self.sizes.n_rows(width as usize, height as usize)?)
    }

    /// Returns the texts between the rows of an image file in memory, each with the number of rows before it.
    ///
    /// # Errors
    /// Returns an [`ImageError`] if the file exceeds a limit or its header is invalid, or the encoder does not accept
    /// images of its size.
    pub fn texts(&self, file: &[u8], limits: &Limits) -> Result<Vec<(usize, String)>, ImageError> {
        let (width, height) = size(file, limits)?;
        Ok(self.sizes.texts(width as usize, height as usize)?)
    }

    /// Tokenizes a prompt. Each [`IMAGE_MARK`] becomes the rows of the next image, with the texts around it. Without a
    /// template, `rendered` is plain text.
    pub fn tokenized(
        &self,
        vocab: &Vocab,
        template: Option<&PromptTemplate>,
        rendered: Rendered,
        images: &[Arc<MediaRows>],
    ) -> Prompt {
        tokenize(&|_| Some((&self.around, SHOWN)), vocab, template, rendered, images)
    }

    /// Returns the texts around an image.
    pub(crate) fn texts_around(&self) -> TextsAround<'_> {
        (&self.around, SHOWN)
    }
}

/// Texts before and after the rows of a medium, and the name of the medium in the text of a prompt.
pub(crate) type TextsAround<'a> = (&'a [String; 2], &'static str);

/// Loads an encoder of a projector file, by default the first one, and checks that it belongs to a language model. Also
/// returns the texts before and after the rows of a medium.
pub(crate) fn model_and_texts(
    path: &Path,
    load: &LoadParams,
    language: &Model,
    medium: Option<Medium>,
) -> Result<(Arc<Model>, [String; 2]), ImageError> {
    let arch = language.arch();
    if arch.media_use == MediaUse::None {
        return Err(ContextError::NoMedia { arch: arch.name }.into());
    }
    // An encoder that the caller declares replaces the encoder of the file.
    let reads = |of: Medium| medium.is_none_or(|medium| medium == of);
    let is_encoder = |r: &&Registered| r.arch.media.is_some_and(|media| reads(media.medium));
    let declared = load.archs.iter().find(is_encoder);
    let load = LoadParams {
        arch: declared.map(|r| r.arch.name.to_owned()),
        read_arch: None,
        medium,
        mtp: false,
        overrides: Vec::new(),
        on_vocab: None,
        ..load.clone()
    };
    let model = Arc::new(Model::load(path, archs::ENCODERS, &load)?);
    let around = around(&model);
    let [found, expected] = [model.result_shape()[0], language.media_width()];
    if found != expected {
        let projector = path.to_owned();
        return Err(ImageError::Width {
            projector,
            found,
            expected,
        });
    }
    let vocab = language.vocab();
    let between = model.image_rules().map_or_else(Vec::new, |rules| rules.texts());
    let mut tags = around.iter().chain(&between).flat_map(|text| tags(text));
    let missing = tags.find(|tag| vocab.tokenize(tag, false, true).len() != 1);
    if let Some(token) = missing.map(str::to_owned) {
        let projector = path.to_owned();
        return Err(ImageError::Token { projector, token });
    }
    drop(tags);
    Ok((model, around))
}

/// Tokenizes a prompt. Each [`IMAGE_MARK`] becomes the rows of the next medium, with the texts that `around` returns
/// for the rows.
pub(crate) fn tokenize<'a>(
    around: &dyn Fn(&MediaRows) -> Option<TextsAround<'a>>,
    vocab: &Vocab,
    template: Option<&PromptTemplate>,
    rendered: Rendered,
    media: &[Arc<MediaRows>],
) -> Prompt {
    let (text, mark) = rendered.into_parts();
    let (mut prompt, mut shown) = (String::with_capacity(text.len()), String::with_capacity(text.len()));
    for (i, piece) in text.split(IMAGE_MARK).enumerate() {
        if i > 0 {
            let texts = media.get(i - 1).and_then(|rows| around(rows));
            let (around, name) = texts.unwrap_or((&NO_TEXTS, SHOWN));
            let [before, after] = numbered(around, media, i - 1);
            prompt.push_str(&before);
            prompt.push(IMAGE_MARK);
            prompt.push_str(&after);
            shown.extend([before.as_str(), name, after.as_str()]);
        }
        prompt += piece;
        shown += piece;
    }
    let mut add_special = template.is_none_or(|template| template.adds_special(&prompt));
    let (mut tokens, mut media) = (Vec::new(), media.iter());
    for (i, piece) in prompt.split(IMAGE_MARK).enumerate() {
        if i > 0
            && let Some(rows) = media.next()
        {
            push_rows(&mut tokens, rows, vocab);
        }
        tokens.extend(match mark {
            Some(mark) => vocab.tokenize_marked(piece, add_special, mark),
            None => vocab.tokenize(piece, add_special, true),
        });
        add_special = false;
    }
    let text = match mark {
        Some(mark) => shown.replace(mark, ""),
        None => shown,
    };
    Prompt { text, tokens }
}

/// Returns the texts around a medium with its index among media of its kind.
fn numbered(around: &[String; 2], media: &[Arc<MediaRows>], index: usize) -> [String; 2] {
    let medium = media.get(index).map(|rows| rows.medium());
    let earlier = media.iter().take(index);
    let number = earlier.filter(|rows| Some(rows.medium()) == medium).count();
    around
        .each_ref()
        .map(|text| text.replace("{number}", &number.to_string()))
}

/// Appends the placeholder tokens of a medium, and the tokens of the texts between its rows.
fn push_rows(tokens: &mut Vec<Token>, rows: &MediaRows, vocab: &Vocab) {
    let mut from = 0;
    for (row, text) in rows.texts() {
        tokens.extend_from_slice(rows.tokens().get(from..*row).unwrap_or_default());
        tokens.extend(vocab.tokenize(text, false, true));
        from = *row;
    }
    tokens.extend_from_slice(rows.tokens().get(from..).unwrap_or_default());
}

/// Returns the rows of an image file in memory.
///
/// # Errors
/// Returns an [`ImageError`] if the file cannot be decoded, or the encoder fails.
pub fn encode_image(encoder: &mut MediaEncoder, file: &[u8]) -> Result<Arc<MediaRows>, ImageError> {
    let (parts, size) = decoded(encoder, file, &Limits::default())?;
    Ok(encoder.encode_parts(&pixels(&parts), size)?)
}

/// Parts of an image, and its width and height before resizing.
type Parts = (Vec<RgbImage>, [usize; 2]);

/// Decodes an image, and resizes and splits it for the encoder.
fn decoded(encoder: &MediaEncoder, file: &[u8], limits: &Limits) -> Result<Parts, ImageError> {
    let image = decode(file, limits)?;
    let size = [image.width as usize, image.height as usize];
    Ok((image_parts(encoder.sizes(), encoder.mean_color(), &image)?, size))
}

/// Returns the colors of the parts of an image.
fn pixels(parts: &[RgbImage]) -> Vec<Pixels<'_>> {
    let colors = parts.iter().map(|part| Pixels {
        width: part.width as usize,
        height: part.height as usize,
        rgb: &part.data,
    });
    colors.collect()
}

/// Returns the texts before and after the rows of a medium.
fn around(encoder: &Model) -> [String; 2] {
    let mut around = [String::new(), String::new()];
    let parts = encoder.arch().media.map_or(&[][..], |media| media.text);
    let mut at = 0;
    for part in parts {
        match part {
            TextPart::Text(text) => around[at] += text,
            TextPart::Medium => at = 1,
        }
    }
    around
}

/// Iterates over the `<…>` and `[…]` in a text.
fn tags(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(['>', ']'])
        .filter_map(|piece| piece.find(['<', '[']).map(|at| &piece[at..]))
}

/// Returns the text of a message without marks.
pub fn without_marks(text: &str) -> String {
    text.replace(IMAGE_MARK, SHOWN)
}

/// Consecutive rows of an image in a prompt.
#[derive(Clone, Debug)]
pub struct ImageSpan {
    /// Index of the first row in the prompt.
    pub start: usize,
    /// Index of the first row in the image.
    pub row: usize,
    /// Number of rows.
    pub len: usize,
    /// All rows of the image.
    pub image: Arc<MediaRows>,
}

impl ImageSpan {
    /// Returns the index after the last row in the prompt.
    pub fn end(&self) -> usize {
        self.start + self.len
    }
}

/// Returns the rows of images in a prompt, in order. Rows of unknown images are skipped.
pub fn image_spans(prompt: &[Token], images: &[Arc<MediaRows>]) -> Vec<ImageSpan> {
    let mut spans: Vec<ImageSpan> = Vec::new();
    for (at, &token) in prompt.iter().enumerate().filter(|(_, token)| **token >= MEDIA_TOKENS) {
        if let Some(last) = spans.last_mut()
            && last.end() == at
            && last.image.tokens().get(last.row + last.len) == Some(&token)
        {
            last.len += 1;
            continue;
        }
        let found = images
            .iter()
            .find_map(|image| Some((image, image.tokens().iter().position(|row| *row == token)?)));
        spans.extend(found.map(|(image, row)| ImageSpan {
            start: at,
            row,
            len: 1,
            image: image.clone(),
        }));
    }
    spans
}

/// Returns the number of images before the image of a span.
fn number(spans: &[ImageSpan], span: &ImageSpan) -> usize {
    let is_start = |s: &&ImageSpan| s.row == 0 && s.image.medium() == Medium::Image;
    let begun = spans.iter().take_while(|s| s.start <= span.start).filter(is_start);
    begun.count().saturating_sub(1)
}

/// Returns the end of the batch that starts at `from`. A batch has at most `n_batch` tokens, without a part of an
/// image unless the image is longer than `n_max`.
pub fn image_batch_end(spans: &[ImageSpan], from: usize, len: usize, n_batch: usize, n_max: usize) -> usize {
    let end = len.min(from + n_batch);
    match spans.iter().find(|span| span.start < end && end < span.end()) {
        Some(cut) if cut.start > from => cut.start,
        Some(cut) if cut.end() - from <= n_max => cut.end(),
        _ => end,
    }
}

/// Adds a part of a prompt with images to a batch, starting at position `part.start`, without output.
pub fn push_with_images(batch: &mut Batch, prompt: &[Token], part: Range<usize>, spans: &[ImageSpan], seq: usize) {
    let seqs = SeqSet::one(seq);
    let mut at = part.start;
    while at < part.end {
        let next = spans.iter().find(|span| span.end() > at);
        match next.filter(|span| span.start <= at) {
            Some(span) => {
                let (row, end) = (span.row + at - span.start, span.end().min(part.end));
                batch.push_numbered_media(&span.image, number(spans, span), row..row + end - at, at, seqs);
                at = end;
            }
            None => {
                let end = next.map_or(part.end, |span| span.start.min(part.end));
                let tokens = prompt[at..end].iter().enumerate();
                tokens.for_each(|(i, &token)| batch.push(token, at + i, seqs, false));
                at = end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: u128, n: usize) -> Arc<MediaRows> {
        Arc::new(MediaRows::new(id, 1, vec![0.0; n]))
    }

    #[test]
    fn spans_follow_rows_of_each_image() {
        let (a, b) = (image(1, 3), image(2, 2));
        let prompt = [&[5, 6][..], a.tokens(), a.tokens(), &[7], &b.tokens()[1..]].concat();
        let found: Vec<_> = image_spans(&prompt, &[b.clone(), a.clone()])
            .iter()
            .map(|span| (span.start, span.row, span.len, span.image.id()))
            .collect();
        assert_eq!(found, [(2, 0, 3, 1), (5, 0, 3, 1), (9, 1, 1, 2)]);
        assert!(image_spans(&prompt, &[]).is_empty());
    }

    #[test]
    fn images_are_numbered_by_their_first_rows() {
        let (a, b) = (image(1, 3), image(2, 2));
        let prompt = [
            &[5][..],
            a.tokens(),
            &b.tokens()[..1],
            &[6],
            &b.tokens()[1..],
            a.tokens(),
        ]
        .concat();
        let spans = image_spans(&prompt, &[a, b]);
        let numbers: Vec<usize> = spans.iter().map(|span| number(&spans, span)).collect();
        assert_eq!(numbers, [0, 1, 1, 2]);
    }

    #[test]
    fn batches_end_at_images() {
        let a = image(1, 4);
        let prompt = [&[5, 6, 7][..], a.tokens(), &[8, 9]].concat();
        let spans = image_spans(&prompt, &[a]);
        let end = |from, n_batch, n_max| image_batch_end(&spans, from, prompt.len(), n_batch, n_max);
        assert_eq!((end(0, 2, 8), end(0, 5, 8), end(0, 9, 9)), (2, 3, 9));
        assert_eq!(
            (end(3, 2, 4), end(3, 2, 3)),
            (7, 5),
            "an image longer than a batch is cut"
        );
        assert_eq!(end(7, 5, 8), 9);
    }

    #[test]
    fn number_in_texts_counts_media_of_one_kind() {
        let sound = Arc::new(MediaRows::new(3, 1, vec![0.0]).of(Medium::Audio));
        let media = [image(1, 3), sound, image(2, 2)];
        let around = ["<id>{number}</id>".to_owned(), String::new()];
        let found = [0, 1, 2].map(|index| numbered(&around, &media, index)[0].clone());
        assert_eq!(found, ["<id>0</id>", "<id>0</id>", "<id>1</id>"]);
    }

    #[test]
    fn tags_are_found_in_text() {
        let found: Vec<_> = tags("\n\n<a><b-c> x <d").collect();
        assert_eq!(found, ["<a>", "<b-c>", "<d"]);
        assert_eq!(tags("[BEGIN] x").collect::<Vec<_>>(), ["[BEGIN]"]);
        assert_eq!(without_marks("a\u{fdef}b"), "a[image]b");
    }
}
