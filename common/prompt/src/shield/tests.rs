//! Tests of keeping client text from spelling control tokens.
