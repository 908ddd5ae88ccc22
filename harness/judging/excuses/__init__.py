"""Why a deviation beyond the bound may be no mistake, each reason with its proof.

- overflow: values that may be infinite or NaN, in the formula's order or any other
- imprecision: losses of a correct but careless algorithm: `imprecise`
"""
