module oxidize-example

go 1.21
