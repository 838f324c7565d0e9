//! Tests of fitting messages to templates.
