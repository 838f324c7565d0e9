//! Inputs of measurements and tests: texts, pictures, sounds.

pub mod corpora;
pub mod pictures;
pub mod prompts;
pub mod sounds;
#[cfg(test)]
pub mod testing;
