//! Tests of the comparison of results, and of this build's own kernels.
//!
//! Not here: processes (`backends::tests`).

use super::*;

#[test]
fn the_kernels_of_this_build_compute_correctly() {
    // SAFETY: reads the registry.
    let device = unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
    assert_eq!(try_all(device), Ok(()));
}

#[test]
fn a_result_with_one_wrong_number_or_nan_is_refused() {
    let expected: Vec<f64> = reference::numbers(1000, 7).into_iter().map(f64::from).collect();
    let close: Vec<f32> = expected.iter().map(|number| (number * 1.01) as f32).collect();
    let check = |result: &[f32]| compare("it".to_owned(), result, &expected);
    assert_eq!(check(&close), Ok(()));
    for wrong in [f32::NAN, f32::INFINITY, 3.0] {
        let mut result = close.clone();
        result[500] = wrong;
        assert!(matches!(check(&result), Err(KernelFault::Wrong { .. })), "{wrong}");
    }
    assert!(matches!(check(&[0.0; 1000]), Err(KernelFault::Wrong { .. })));
}

#[test]
fn the_reference_weights_values_by_the_products_of_keys_and_queries() {
    let shape = reference::Attention { width: 2, n_heads: 2, n_kv_heads: 1, n_kept: 2, n_tokens: 1 };
    let (keys, values) = ([5.0, 0.0, 0.0, 5.0], [1.0, 2.0, 3.0, 4.0]);
    let found = reference::attention(&shape, &[5.0, 0.0, 5.0, 5.0], &keys, &values);
    for (found, expected) in found.iter().zip([1.0, 2.0, 2.0, 3.0]) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}
