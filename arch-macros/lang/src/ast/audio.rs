//! Syntax tree of `audio { … }`.

use proc_macro2::Span;
use syn::{Expr, Ident};

/// `audio { rate: 16000; mel: whisper(n_mel); frames: 5 every 2; chunk: masked(n_pos); }`
#[derive(Clone)]
pub struct AudioSyntax {
    /// Span of the keyword `audio`.
    pub span: Span,
    /// Samples per second.
    pub rate: Option<Expr>,
    /// Kind of spectrogram, and number of mel filters.
    pub mel: Option<(Ident, Expr)>,
    /// Frames of positions.
    pub frames: Option<FramesSyntax>,
    /// Treatment of the silence that fills a chunk, and positions of a chunk.
    pub chunk: Option<(Ident, Expr)>,
}

/// `5 every 2` or `15 every 8 in pieces(100)`
#[derive(Clone)]
pub struct FramesSyntax {
    /// Number of frames in a position.
    pub window: Expr,
    /// Frames between positions.
    pub step: Expr,
    /// Frames in a piece.
    pub piece: Option<Expr>,
}
