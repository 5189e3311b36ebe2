"""One module per family of the API: parse, ask a service, render. Routes translate; they decide nothing."""
