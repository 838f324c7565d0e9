//! Tests of making prompts with real vocabularies.
