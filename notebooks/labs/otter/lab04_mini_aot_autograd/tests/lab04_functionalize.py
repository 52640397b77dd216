OK_FORMAT = True

test = {
 "name": "lab04_functionalize",
 "points": 3,
 "suites": [
  {
   "cases": [
    {
     "code": ">>> import fuselab.labs\n>>> fuselab.labs.points('lab04.functionalize') == 3\nTrue",
     "hidden": False,
     "locked": False
    }
   ],
   "scored": True,
   "setup": "",
   "teardown": "",
   "type": "doctest"
  }
 ]
}
