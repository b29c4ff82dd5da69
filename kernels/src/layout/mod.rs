//! Layout of weights in memory, shared by the formats in [`quants`](crate::quants) and the algorithms in
//! `generic`.
//!
//! | module | contents | implemented by |
//! |---|---|---|
//! | [`block`] | [`Block`](block::Block): the bytes of a type and its scalar decoder | every type |
//! | [`decode`] | [`Decode`](decode::Decode): vector decoder to f32 | every type |
//! | [`runs`] | [`Unpack`](runs::Unpack): 32 weights of a row as 8-bit integers | integer types |
//! | [`groups`] | [`UnpackGroup`](groups::UnpackGroup): 4 weights of each of 8 interleaved rows | integer types |
//! | [`assemble`] | `FromScales` and others: blocks made from scales and indices | types with an encoder |
//!
//! A format implements the traits, an algorithm is generic over them. Neither uses the other.

pub(crate) mod assemble;
pub(crate) mod block;
pub(crate) mod decode;
pub(crate) mod groups;
pub(crate) mod runs;
