//! Tests of `tojson` against what CPython 3.11 prints.

use super::float_repr;

#[test]
fn floats_print_as_python_prints_them() {
    let cases = [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.1, "0.1"),
        (1e-4, "0.0001"),
        (1e-5, "1e-05"),
        (1.5e-7, "1.5e-07"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
    ];
    for (float, expected) in cases {
        assert_eq!(float_repr(float), expected);
    }
}
