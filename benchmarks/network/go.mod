module dynastate/benchmarks/network

go 1.19
