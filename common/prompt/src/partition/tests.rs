//! Tests of cutting texts at special tokens.
