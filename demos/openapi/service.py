"""Another team's service, which knows nothing of agents: python demos/openapi/service.py PORT"""

import sys
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Path
from pydantic import BaseModel

app = FastAPI(title="Garden", version="1.0")
BEDS = {"roses": 40, "herbs": 12}


class Water(BaseModel):
    litres: float


@app.get("/beds", operation_id="list_beds", summary="The beds, and how dry they are in percent")
def list_beds() -> dict[str, int]:
    return BEDS


@app.post("/beds/{bed}/water", operation_id="water", summary="Water one bed")
def water(bed: Annotated[str, Path(description="Name of the bed")], body: Water) -> str:
    return f"{bed} got {body.litres:g} litres"


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
