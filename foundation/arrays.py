"""NumPy array types, named by dtype."""

import numpy as np
import numpy.typing as npt

Float16Array = npt.NDArray[np.float16]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt16Array = npt.NDArray[np.uint16]
UInt64Array = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.integer]
BoolArray = npt.NDArray[np.bool_]
