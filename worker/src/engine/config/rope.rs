//! Settings of rotary position encoding (RoPE) that differ from the model's file.
//!
//! Not here: flags (`crate::config::rope`), the file's values (`llama::layout`).

use super::metadata::Metadata;

/// Settings of RoPE; `None` means the file's value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RopeSettings {
    /// Method of scaling.
    pub scaling: Option<RopeScaling>,
    /// Base frequency.
    pub freq_base: Option<f32>,
    /// Factor of all frequencies; 0.5 extends the context to twice its length.
    pub freq_scale: Option<f32>,
    /// YaRN: original context, before the extension. Units: tokens.
    pub yarn_orig_ctx: Option<u32>,
    /// YaRN: share of extrapolation.
    pub yarn_ext_factor: Option<f32>,
    /// YaRN: factor of the attention's magnitude.
    pub yarn_attn_factor: Option<f32>,
    /// YaRN: number of rotations below which a dimension is scaled fully.
    pub yarn_beta_slow: Option<f32>,
    /// YaRN: number of rotations above which a dimension is not scaled.
    pub yarn_beta_fast: Option<f32>,
}

/// Method of scaling RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies by the same factor.
    Linear,
    /// High frequencies less than low ones.
    Yarn,
}

impl RopeSettings {
    /// Returns whether keys are scaled as well as rotated, so that a second rotation by zero would change them.
    pub(crate) fn scales_keys(&self) -> bool {
        self.scaling == Some(RopeScaling::Yarn)
            || self.yarn_ext_factor.is_some_and(|factor| factor != 0.0)
            || self.yarn_attn_factor.is_some_and(|factor| (factor - 1.0).abs() > f32::EPSILON)
    }

    /// Returns the context that a model supports; 0 if its file has no trained context. A frequency factor smaller than
    /// the file's extends the context. Units: tokens.
    pub(crate) fn extended(&self, metadata: &Metadata<'_>) -> u32 {
        let trained_tokens = metadata.number("context_length").unwrap_or(0);
        let is_scaled = self.scaling != Some(RopeScaling::None);
        let Some(scale) = self.freq_scale.filter(|scale| is_scaled && *scale < 1.0) else { return trained_tokens };
        let original = metadata.number("rope.scaling.original_context_length");
        let original = self.yarn_orig_ctx.or(original).unwrap_or(trained_tokens);
        // A float cast saturates.
        trained_tokens.max((f64::from(original) / f64::from(scale)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_scale_extends_the_context() {
        let file = |key: &str| match key {
            "general.architecture" => Some("llama".to_owned()),
            "llama.context_length" => Some("4096".to_owned()),
            _ => None,
        };
        let extended = |rope: RopeSettings| rope.extended(&Metadata::new(&[], &file));
        let scaled = RopeSettings { freq_scale: Some(0.25), ..RopeSettings::default() };
        assert_eq!(extended(RopeSettings::default()), 4096);
        assert_eq!(extended(scaled), 16_384);
        assert_eq!(extended(RopeSettings { yarn_orig_ctx: Some(8192), ..scaled }), 32_768);
        assert_eq!(extended(RopeSettings { freq_scale: Some(2.0), ..scaled }), 4096);
        assert_eq!(extended(RopeSettings { scaling: Some(RopeScaling::None), ..scaled }), 4096);
    }

    #[test]
    fn yarn_scales_keys() {
        let base = RopeSettings::default();
        assert!(!base.scales_keys());
        assert!(!RopeSettings { scaling: Some(RopeScaling::Linear), freq_scale: Some(0.5), ..base }.scales_keys());
        assert!(RopeSettings { scaling: Some(RopeScaling::Yarn), ..base }.scales_keys());
        assert!(RopeSettings { yarn_ext_factor: Some(0.5), ..base }.scales_keys());
        assert!(RopeSettings { yarn_attn_factor: Some(0.5), ..base }.scales_keys());
    }
}
