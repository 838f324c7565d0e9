//! Reading JSON as clients write it: typed errors with the field's path, numbers and maps in their odd forms.

pub mod empty_maps;
pub mod fields;
pub mod whole;
