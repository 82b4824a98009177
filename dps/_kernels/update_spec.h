/* Which optimizer, and its constants. */
#ifndef DPS_UPDATE_SPEC_H
#define DPS_UPDATE_SPEC_H

#include <stdint.h>

enum { DPS_SGD, DPS_MOMENTUM, DPS_ADAGRAD, DPS_SCALED_ADAGRAD, DPS_ADAM };

typedef struct {
    int kind;
    int nesterov;
    double momentum;
    double beta1;
    double beta2;
    double epsilon;
    double decay; /* what the learning rate is multiplied by to shrink parameters; 0: nothing */
    int state_rows;        /* without the running mean */
    int64_t averaged_from; /* updates left out of the running mean; below 0 there is none */
    int64_t horizon;       /* updates that the running mean goes back, about; 0: all */
} dps_update_spec;

#endif
