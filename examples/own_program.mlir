// A program of your own: y = A x + y, with y changed in place. Environments take it by
//   gym.make("MLIRPasses-v0", program="examples/own_program.mlir")
func.func @update(%A: memref<256x256xf32> {solgym.name = "A"}, %x: memref<256xf32> {solgym.name = "x"},
                  %y: memref<256xf32> {solgym.name = "y"}) {
  affine.for %i = 0 to 256 {
    affine.for %j = 0 to 256 {
      %a = affine.load %A[%i, %j] : memref<256x256xf32>
      %b = affine.load %x[%j] : memref<256xf32>
      %c = affine.load %y[%i] : memref<256xf32>
      %product = arith.mulf %a, %b : f32
      %sum = arith.addf %c, %product : f32
      affine.store %sum, %y[%i] : memref<256xf32>
    }
  }
  return
}
